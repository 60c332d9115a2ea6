"""What SQL of users may contain, decided from its syntax tree alone."""
