"""Clients of a Pando cluster: `Client` and `AsyncClient` over gRPC, `HttpClient` and `AsyncHttpClient` over HTTP.

All four have the same methods and the same answers. Import them from `pando`.
"""
