"""The API's one description: what a server's answers are made of, its OpenAPI document shows and a client reads."""
