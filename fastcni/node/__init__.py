"""The inventory of a node's attachments, and the faults of the node. Nothing here changes the node's network."""
