"""`distlab launch`: a script on every task of a cluster on this machine."""
