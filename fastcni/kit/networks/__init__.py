"""Several networks of a pod: which networks a pod has, and the files that Multus keeps of them."""
