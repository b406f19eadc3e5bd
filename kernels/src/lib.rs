//! Numbers in buffers. Knows no file, request or model name.
