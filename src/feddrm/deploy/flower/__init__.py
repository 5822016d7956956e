"""The only modules that import Flower: its apps, its processes, and the daemons that look after them."""
