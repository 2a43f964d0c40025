"""What the environment says of a cluster, read and checked; needs no TensorFlow.

`distlab.cluster.spec.read_cluster` is the way in.
"""
