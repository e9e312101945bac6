"""The policy pack: `pulumi up --policy-pack policies`."""
