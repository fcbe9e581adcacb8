use super::*;

const GOOD: &str = "\
node: node0
fabric: play
control: {listen: 127.0.0.1:7400}
metrics: {listen: 127.0.0.1:7401}
data:
  address: 127.0.0.1
  ports: {first: 7410, count: 16}
operator:
  ticketKey: 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
tls: {ca: ca.pem, certificate: node.pem, key: node.key}
roots:
  - name: models
    path: /srv/models
    access: ReadWrite
transport:
  policy: two-choices
  congestion: fixed:1MiB
  rtoMin: 250us
limits: {memory: 64MiB}
";

#[test]
fn a_good_file_is_read_and_the_rest_is_default() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.node.as_str(), "node0");
    assert_eq!(
        config.data.ports,
        Ports {
            first: 7410,
            count: 16
        }
    );
    assert_eq!(config.paths(), 128);
    assert_eq!(config.operator.ticket_key.0[31], 0x1f);
    assert_eq!(config.roots[0].access, Access::ReadWrite);
    assert_eq!(config.roots[0].limits(), RootLimits::default());
    for (text, min_free) in [
        ("0", MinFree::Bytes(0)),
        ("5GiB", MinFree::Bytes(5 << 30)),
        ("100%", MinFree::Percent(100)),
    ] {
        let limits = format!("access: ReadWrite\n    minFree: {text}\n    bytesPerNamespace: 1MiB");
        let config = parse(&GOOD.replace("access: ReadWrite", &limits)).unwrap();
        let bytes_per_namespace = Some(1 << 20);
        let limits = RootLimits {
            min_free,
            bytes_per_namespace,
        };
        assert_eq!(config.roots[0].limits(), limits);
    }
    assert_eq!(config.transport.rto_min.nanos(), 250_000);
    assert_eq!(config.transport.chunk.0, 64 << 10);
    assert_eq!(config.transport.encryption, Encryption::Off);
    assert_eq!(config.limits.memory.0, 64 << 20);
    assert_eq!(config.limits.slots, DEFAULT_SLOTS);
    assert!(matches!(
        config.transport.congestion.0,
        CongestionKind::Fixed { bytes: 1_048_576 }
    ));
}

#[test]
fn files_move_over_all_nics_that_are_named() {
    let several = "  otherAddresses: [127.0.0.2, 127.0.0.3]\n  ports:";
    let config = parse(&GOOD.replace("  ports:", several)).unwrap();
    let nics = [1, 2, 3].map(|last| Ipv4Addr::new(127, 0, 0, last));
    assert_eq!(config.data.nics(), nics);
    assert_eq!(parse(GOOD).unwrap().data.nics(), nics[..1]);
}

#[test]
fn an_error_names_the_line_or_the_whole_field_and_what_would_be_right() {
    let table = [
        (
            "node: node0",
            "node: Node_0",
            1,
            "node",
            "is not a node name",
        ),
        (
            "fabric: play",
            "fabric: a.b",
            2,
            "fabric",
            "is not a fabric name",
        ),
        ("fabric: play\n", "", 0, "fabric", "is missing: add it"),
        ("count: 16", "count: 17", 0, "data.ports.count", "1 to 16"),
        (
            "first: 7410",
            "first: 0",
            0,
            "data.ports.first",
            "1 or more",
        ),
        (
            "first: 7410",
            "first: 65530",
            0,
            "data.ports",
            "beyond port 65535",
        ),
        ("first: 7410", "first: 70000", 7, "ports", "70000"),
        (
            "  ports:",
            "  otherAddresses: [127.0.0.2, 0.0.0.0]\n  ports:",
            0,
            "data.otherAddresses[1]",
            "is of no interface",
        ),
        (
            "  ports:",
            "  otherAddresses: [127.0.0.2, 127.0.0.1]\n  ports:",
            0,
            "data.otherAddresses[1]",
            "`127.0.0.1` is there twice",
        ),
        (
            "  ports: {first: 7410, count: 16}",
            "  otherAddresses: [127.0.0.2, 127.0.0.3]\n  ports: {first: 7410, count: 2}",
            0,
            "data.ports.count",
            "2 is fewer than the 3 NICs",
        ),
        (
            "address: 127.0.0.1\n",
            "address: localhost\n",
            6,
            "address",
            "IPv4",
        ),
        (
            "  ports:",
            "  mtu: 100\n  ports:",
            0,
            "data.mtu",
            "1280 to 65535",
        ),
        ("1d1e1f", "1d1e1", 9, "ticketKey", "64 hexadecimal"),
        ("1d1e1f", "1d1exx", 9, "ticketKey", "64 hexadecimal"),
        (
            "name: models",
            "name: Models",
            0,
            "roots[0].name",
            "[a-z0-9-]",
        ),
        (
            "path: /srv/models",
            "path: srv",
            0,
            "roots[0].path",
            "must be absolute",
        ),
        (
            "access: ReadWrite",
            "access: rw",
            14,
            "access",
            "ReadOnly or ReadWrite",
        ),
        (
            "access: ReadWrite",
            "minFree: 101%",
            14,
            "minFree",
            "0% to 100%",
        ),
        (
            "access: ReadWrite",
            "minFree: 5GB",
            14,
            "minFree",
            "with KiB, MiB or GiB",
        ),
        (
            "access: ReadWrite",
            "bytesPerNamespace: 10%",
            14,
            "bytesPerNamespace",
            "is not a size",
        ),
        (
            "policy: two-choices",
            "policy: best",
            16,
            "policy",
            "two-choices",
        ),
        (
            "congestion: fixed:1MiB",
            "congestion: cubic",
            17,
            "congestion",
            "ecn-rtt",
        ),
        (
            "rtoMin: 250us",
            "encryption: maybe",
            18,
            "encryption",
            "required",
        ),
        (
            "rtoMin: 250us",
            "rtoMin: 250",
            18,
            "rtoMin",
            "not a duration",
        ),
        ("rtoMin: 250us", "rtomin: 250us", 18, "rtomin", "rtoMin"),
        (
            "rtoMin: 250us",
            "paths: 257",
            0,
            "transport.paths",
            "1 to 256, the square of data.ports.count",
        ),
        (
            "rtoMin: 250us",
            "chunk: 1MiB",
            0,
            "transport.chunk",
            "512 to 64KiB",
        ),
        (
            "rtoMin: 250us",
            "stallTimeout: 1ms",
            0,
            "transport.stallTimeout",
            "100ms",
        ),
        ("rtoMin: 250us", "link: tpc", 18, "link", "tcp"),
        (
            "memory: 64MiB",
            "memory: 1MiB",
            0,
            "limits.memory",
            "16MiB or more",
        ),
        ("memory: 64MiB", "memory: lots", 19, "limits", "not a size"),
        ("memory: 64MiB", "slots: 1", 0, "limits.slots", "2 to 64"),
        (
            "memory: 64MiB",
            "lease: 0s",
            0,
            "limits.lease",
            "1s or more",
        ),
        (
            "memory: 64MiB",
            "slots: 8}\nobjects: {listTimeout: 1ms",
            0,
            "objects.listTimeout",
            "100ms",
        ),
        (
            "address: 127.0.0.1\n",
            "address: 0.0.0.0\n",
            0,
            "data.address",
            "of no interface",
        ),
        (
            "metrics: {listen: 127.0.0.1:7401}",
            "metrics: {listen: 0.0.0.0:7400}",
            0,
            "metrics.listen",
            "taken by control.listen",
        ),
        (
            "fabric: play\n",
            "fabric: play\nfabric: play\n",
            3,
            "fabric",
            "remove one of the two",
        ),
        (GOOD, "", 0, "", "is empty or ends too early"),
        ("control: {", "control: {{", 3, "", ""),
    ];
    for (good, bad, line, field, hint) in table {
        assert!(GOOD.contains(good), "{good}");
        let error = parse(&GOOD.replacen(good, bad, 1)).expect_err(bad);
        let text = error.to_string();
        assert_eq!(error.line, line, "{bad}: {text}");
        assert!(error.field.contains(field), "{bad}: {text}");
        assert!(text.contains(hint), "{bad}: {text}");
    }
}

#[test]
fn roots_have_names_of_their_own_and_lie_apart() {
    let second = |name: &str, path: &str| {
        let root = format!("  - {{name: {name}, path: {path}, access: ReadOnly}}\ntransport:");
        parse(&GOOD.replacen("transport:", &root, 1))
    };
    assert!(second("data", "/srv/data").is_ok());
    let error = second("models", "/srv/data").unwrap_err();
    assert_eq!(error.field, "roots[1].name");
    assert!(error.message.contains("taken by roots[0]"), "{error}");
    let error = second("inner", "/srv/models/inner").unwrap_err();
    assert_eq!(error.field, "roots[1].path");
}

#[test]
fn no_text_makes_the_parser_panic() {
    for end in 0..GOOD.len() {
        if GOOD.is_char_boundary(end) {
            let _ = parse(&GOOD[..end]);
            let _ = parse(&GOOD[end..]);
        }
    }
    for text in [
        "",
        "\0",
        "[]",
        "&a [*a]",
        "node: !!binary x",
        "\u{feff}node: x",
        "{{{{{{",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
}

#[test]
fn credits_are_configured_with_the_rate_at_which_nodes_receive() {
    let kind = |text: &str| text.parse().map(|congestion: Congestion| congestion.0);
    let eqds = |receive_bps, micros: u64| CongestionKind::Eqds {
        receive_bps,
        round_trip: Duration::from_micros(micros).to_core(),
    };
    assert_eq!(kind("eqds:10000mbit"), Ok(eqds(10_000_000_000, 50)));
    assert_eq!(kind("eqds:25mbit:1ms"), Ok(eqds(25_000_000, 1_000)));
    for text in ["eqds", "eqds:0mbit", "eqds:10", "eqds:10mbit:"] {
        assert!(kind(text).is_err(), "{text}");
    }
}
