"""The transports that are built in. One file each, with an object `TRANSPORT`;
`registry.TRANSPORTS` knows them by name."""
