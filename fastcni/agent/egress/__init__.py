"""Give packets of selected pods to outside the cluster a fixed source address. One node at a time holds this
address."""
