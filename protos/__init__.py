"""The wire contract: taihu.v1 protobuf messages and services (generated code is committed)."""
