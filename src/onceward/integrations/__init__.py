"""Where the inbox meets what applications are built with."""
