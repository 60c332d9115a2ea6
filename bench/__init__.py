"""Vitrine beside SQL typed by hand: each workload is measured in the same minutes as the limit it is compared with."""
