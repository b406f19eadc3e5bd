//! A connection's bytes: heads and bodies.

use engine_bin::serve::Bounds;
use engine_bin::serve::probe::stream;

use super::{Damage, Reader, Target};

pub(super) const TARGET: Target = Target {
    name: "http",
    seeds,
    words: &[
        "\r\n",
        "\r\n\r\n",
        "\n",
        "\r",
        "\0",
        ": ",
        " :",
        "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        " HTTP/1.0\r\n",
        " HTTP/1.1\r\n",
        " HTTP/2.0\r\n",
        "POST ",
        "OPTIONS * ",
        "CONNECT ",
        "http://h/",
        "%2F",
        "%",
        "?a=b",
        "#",
        "Host: h\r\n",
        "Content-Length: 3\r\n",
        "Content-Length: ",
        "9007199254740993",
        "18446744073709551616",
        "Transfer-Encoding: chunked\r\n",
        "chunked",
        "identity",
        "Connection: close\r\n",
        "keep-alive",
        "Expect: 100-continue\r\n",
        "0\r\n\r\n",
        "3;x=y\r\nabc\r\n",
        "ffffffffffffffff\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01",
    ],
    damage: Damage::Bytes,
    reader,
};

fn seeds() -> Vec<Vec<u8>> {
    let chunked = "POST /v1/chat/completions?beta=true HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
                   1;x=y\r\n{\r\n2\r\n\"a\r\na\r\n\": 1.0e5,}\r\n0\r\nX-T: 1\r\nY: 2\r\n\r\nGET /livez HTTP/1.1\r\nHost: h\r\n\r\n";
    let length = "\r\n\r\nPOST /tokenize HTTP/1.1\r\nhost: [::1]:80\r\nContent-Length: 15\r\nExpect: 100-continue\r\n\
                  Connection: x, close\r\n\r\n{\"content\":\"a\"}";
    let old = "GET http://h/v1/models/org%2Fm?x=%20#y HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /metrics HTTP/1.0\r\n\r\n";
    let cors = "OPTIONS * HTTP/1.1\r\nHost: h\r\nOrigin: http://x\r\nAccess-Control-Request-Headers: a, b\r\n\
                Authorization: Bearer k\r\nX-Long: \t padded value \t\r\n\r\n";
    [chunked, length, old, cors].into_iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn reader() -> Reader {
    // Small, so that short inputs reach them.
    let bounds = Bounds { uri_bytes: 96, head_bytes: 400, headers: 8, ..Bounds::default() };
    Box::new(move |bytes| {
        let whole = stream(bytes, bytes.len().max(1), &bounds);
        // How the bytes come cut must not matter.
        for piece in [1, 2, 7] {
            let cut = stream(bytes, piece, &bounds);
            assert_eq!((&cut.requests, &cut.refused), (&whole.requests, &whole.refused), "in pieces of {piece}");
            assert!(whole.refused.is_some() || cut.used == whole.used, "in pieces of {piece}");
        }
        assert!(whole.used <= bytes.len());
        let bodies: usize = whole.requests.iter().map(|request| request.body.len()).sum();
        assert!(bodies <= whole.used);
        for request in &whole.requests {
            assert!(request.path.starts_with('/') || request.path == "*", "{:?}", request.path);
        }
        whole.refused.is_none() && !whole.requests.is_empty()
    })
}
