"""Arena: bytes of a tier inside its limit, counted, and the order in which they may be used again."""
