"""The three restricted accounts of an installation: what each may do, how they are created, what is wrong with them."""
