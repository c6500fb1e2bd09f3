"""How good is it? The one validation loop."""
