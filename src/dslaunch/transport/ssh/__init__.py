"""What the user's SSH configuration and known_hosts files say, as OpenSSH reads them."""
