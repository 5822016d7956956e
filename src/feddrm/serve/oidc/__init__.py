"""Bearer tokens of an OpenID Connect issuer, as an alternative to API keys (extra: oidc)."""
