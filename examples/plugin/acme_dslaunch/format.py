"""A render format: an inventory for Ansible, to prepare the nodes of a run."""

from __future__ import annotations

from dslaunch.plugin import Launch, Rendered


class AnsibleInventory:
    """The nodes in rank order, with their slots as a variable."""

    summary = "an inventory for Ansible"

    def render(self, launch: Launch) -> Rendered:
        """Return the inventory, and what its reader must know beside it."""
        lines = ["[ranks]"]
        for placement in launch.placements:
            address = placement.node.address or placement.node.host
            lines.append(
                f"{placement.node.host} ansible_host={address} slots={len(placement.slots)}"
            )
        text = "\n".join(lines) + "\n"
        return Rendered(text, notes=("the group `ranks` is in rank order",), assumes=())


FORMAT = AnsibleInventory()
