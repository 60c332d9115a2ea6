"""The registered transforms and readers that come with Vitrine, one file each."""
