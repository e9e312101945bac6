"""What Pulumi shows: the cluster, its nodes, Ray and serve."""
