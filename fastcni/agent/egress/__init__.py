"""Give the packets that selected pods send to outside the cluster a fixed source address. One node at a time holds this
address."""
