"""Where the inbox meets what applications are built with: the frameworks themselves, on each store."""
