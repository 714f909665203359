"""The figures of the long suites, and the page that is made from them."""
