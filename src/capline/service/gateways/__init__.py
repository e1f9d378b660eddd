"""Programs that ask for each of their requests: nginx, Caddy, Traefik and HAProxy, by `check` and SPOE."""
