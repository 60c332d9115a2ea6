"""Two trees of Vitrine doing the same work in turns: is the new one slower than the old one?"""
