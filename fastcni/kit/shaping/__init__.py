"""Traffic shaping: qdiscs and the ifb device of a pod."""
