use super::*;

fn files(names: &[&str], quant: Option<&str>) -> Result<String, String> {
    match choose(names, quant, Wanted::Model)?.chosen {
        Chosen::Gguf(files) => Ok(files.iter().map(|&i| names[i]).collect::<Vec<_>>().join(" ")),
        Chosen::Package(i) => Ok(format!("package {}", names[i])),
    }
}

const REPO: &[&str] = &[
    ".gitattributes",
    "README.md",
    "M-BF16-00001-of-00002.gguf",
    "M-BF16-00002-of-00002.gguf",
    "M-IQ4_XS.gguf",
    "M-Q4_0.gguf",
    "M-Q4_0_4_4.gguf",
    "M-Q4_K_M.gguf",
    "M-Q4_K_S.gguf",
    "M-UD-Q4_K_XL.gguf",
    "Q8_0/M-00002-of-00002.gguf",
    "Q8_0/M-00001-of-00002.gguf",
    "imatrix.gguf",
    "M-imatrix.gguf",
    "mmproj-F16.gguf",
    "mtp-M-Q8_0.gguf",
];

#[test]
fn a_quant_is_a_whole_part_of_the_name() {
    for (quant, found) in [
        ("Q4_K_M", "M-Q4_K_M.gguf"),
        ("q4_k_m", "M-Q4_K_M.gguf"),
        ("Q4_0", "M-Q4_0.gguf"),
        ("IQ4_XS", "M-IQ4_XS.gguf"),
        ("UD-Q4_K_XL", "M-UD-Q4_K_XL.gguf"),
        ("Q4_K_XL", "M-UD-Q4_K_XL.gguf"),
        ("bf16", "M-BF16-00001-of-00002.gguf M-BF16-00002-of-00002.gguf"),
        ("Q8_0", "Q8_0/M-00001-of-00002.gguf Q8_0/M-00002-of-00002.gguf"),
        ("M-Q4_K_S", "M-Q4_K_S.gguf"),
    ] {
        assert_eq!(files(REPO, Some(quant)).as_deref(), Ok(found), "{quant}");
    }
    for none in ["Q4_K", "Q4", "K_M", "0", "4_XS", "XS", "F16", "Q5_K_M", "imatrix", "Q4_K_", "_K_M", "mtp"] {
        let error = files(REPO, Some(none)).unwrap_err();
        assert!(
            error.contains("no model of quant") && error.contains("M-Q4_K_M") && !error.contains("mmproj"),
            "{error}"
        );
    }
}

#[test]
fn names_are_spelled_in_many_ways() {
    for name in [
        "model.Q4_K_M.gguf",
        "model_q4_k_m.gguf",
        "model-q4_k_m.GGUF",
        "a/b-Q4_K_M.gguf",
        "Qwen2.5-1.5B.i1-Q4_K_M.gguf",
    ] {
        assert_eq!(files(&["x-Q8_0.gguf", name], Some("Q4_K_M")).as_deref(), Ok(name));
    }
    // A name that only looks split is a name.
    let odd = "m-Q8_0-00003-of-00002.gguf";
    assert_eq!(files(&[odd, "m-F16.gguf"], Some("q8_0")).as_deref(), Ok(odd));
    assert_eq!(files(&["m-00001-of-00001.gguf"], None).as_deref(), Ok("m-00001-of-00001.gguf"));
}

#[test]
fn without_a_quant_the_only_one_or_q4_k_m() {
    assert_eq!(files(&["m-Q8_0.gguf", "mtp-m.gguf", "mmproj.gguf"], None).as_deref(), Ok("m-Q8_0.gguf"));
    let several = choose(REPO, None, Wanted::Model).unwrap();
    assert_eq!(several.chosen, Chosen::Gguf(vec![7]));
    assert!(several.note.unwrap().contains("M-Q4_K_M (Q4_K_M)") && several.certain);
    let error = files(&["m-Q8_0.gguf", "m-F16.gguf"], None).unwrap_err();
    assert!(error.contains("m-F16, m-Q8_0"), "{error}");
    // From a part of the names it cannot be told whether there is a better one.
    for (name, certain) in [("m-Q8_0.gguf", false), ("m-Q4_K_M.gguf", true)] {
        assert_eq!(choose(&[name], None, Wanted::Model).unwrap().certain, certain);
    }
    assert!(choose(REPO, Some("Q4_0"), Wanted::Model).unwrap().certain);
}

#[test]
fn ambiguity_and_absence_list_what_is_there() {
    let two = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"];
    for quant in [None, Some("Q4_K_M")] {
        let error = files(&two, quant).unwrap_err();
        assert!(error.contains("2 models") && error.contains("a-Q4_K_M, b-Q4_K_M"), "{error}");
    }
    assert_eq!(files(&two, Some("b-Q4_K_M")).as_deref(), Ok("b-Q4_K_M.gguf"));
    for none in [&["README.md", "model.safetensors"][..], &[], &["mmproj-x.gguf", "mtp-x.gguf", ".gguf", "a/.gguf"]] {
        assert_eq!(files(none, None), Err("holds no GGUF model".to_owned()));
    }
    let many: Vec<String> = (0..100).map(|i| format!("m{i}-F16.gguf")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(files(&many, None).unwrap_err().ends_with("and 60 more"));
    let split = ["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"];
    assert_eq!(files(&split, None), Err("m lacks shard 2 of 3".to_owned()));
    // Two sets of one name are two models.
    let sets = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "m-00001-of-00003.gguf"];
    assert!(files(&sets, None).unwrap_err().contains("m, m"));
    // Names are somebody else's: neither their bytes nor their numbers may hurt.
    for odd in ["\u{e9}.gguf", "\u{1b}[2J-Q8_0.gguf", "m-99999-of-99999.gguf", "gguf", "\u{e9}gguf", "x\u{e9}guf"] {
        let _ = files(&[odd, "n-F16.gguf"], Some("Q8_0"));
    }
}

#[test]
fn a_sidecar_is_taken_when_asked_for_and_clear() {
    let take = |names: &[&str], quant: Option<&str>| {
        choose(names, quant, Wanted::ModelAndSidecar).map(|c| names[c.mtp.unwrap()].to_owned())
    };
    let repo = ["m-Q8_0.gguf", "m-F16.gguf", "mtp-m-Q8_0.gguf", "MTP/mtp-m-F16.gguf"];
    assert_eq!(take(&repo, Some("Q8_0")).as_deref(), Ok("mtp-m-Q8_0.gguf"));
    assert_eq!(take(&repo, Some("F16")).as_deref(), Ok("MTP/mtp-m-F16.gguf"));
    assert_eq!(take(&["m-Q4_K_M.gguf", "mtp-m.gguf"], None).as_deref(), Ok("mtp-m.gguf"));
    assert_eq!(take(&["m-Q4_0.gguf", "mtp-x-Q4_0.gguf", "mtp-x-BF16.gguf"], None).as_deref(), Ok("mtp-x-Q4_0.gguf"));
    assert!(
        take(&["m-Q4_K_M.gguf", "mtp-x-Q8_0.gguf", "mtp-x-BF16.gguf"], None)
            .unwrap_err()
            .contains("mtp-x-BF16, mtp-x-Q8_0")
    );
    assert!(take(&["m-Q8_0.gguf"], None).unwrap_err().contains("no MTP sidecar"));
    assert_eq!(choose(&repo, Some("Q8_0"), Wanted::Model).unwrap().mtp, None);
}

#[test]
fn a_package_is_taken_as_one() {
    let package = ["layers/layer-00000.gguf", MANIFEST, "shared/output.gguf"];
    assert_eq!(files(&package, None).as_deref(), Ok("package model-package.json"));
    assert!(files(&package, Some("Q8_0")).unwrap_err().contains("leave out :Q8_0"));
    assert!(choose(&package, None, Wanted::ModelAndSidecar).unwrap_err().contains("leave out --with-mtp"));
    for quant in [None, Some("Q8_0")] {
        let error = choose(&package, quant, Wanted::Sidecar).unwrap_err();
        assert!(error.contains("has its MTP block inside; give a repository with an mtp-*.gguf"), "{error}");
    }
    assert!(files(&["sub/model-package.json"], None).is_err());
}

#[test]
fn a_sidecar_alone_is_the_only_one_or_of_the_quant() {
    let head = |names: &[&str], quant: Option<&str>| {
        choose(names, quant, Wanted::Sidecar).map(|c| match c.chosen {
            Chosen::Gguf(files) if c.mtp.is_none() => (names[files[0]].to_owned(), c.certain),
            other => panic!("{other:?}"),
        })
    };
    let repo = ["m-Q8_0.gguf", "m-F16.gguf", "mtp-m-Q8_0.gguf", "MTP/mtp-m-F16.gguf", "mmproj-F16.gguf"];
    let is = |name: &str, certain| Ok((name.to_owned(), certain));
    assert_eq!(head(&repo, Some("q8_0")), is("mtp-m-Q8_0.gguf", true));
    assert_eq!(head(&repo, Some("F16")), is("MTP/mtp-m-F16.gguf", true));
    // There may be more than these names.
    assert_eq!(head(&["m-Q8_0.gguf", "mtp-x.gguf"], None), is("mtp-x.gguf", false));
    for (names, quant, part) in [
        (
            &repo[..],
            None,
            "has 2 MTP sidecars: write the quant or the file's name after : of one of MTP/mtp-m-F16, mtp-m-Q8_0",
        ),
        (&repo, Some("Q4_0"), "has no MTP sidecar of quant Q4_0; it has MTP/mtp-m-F16, mtp-m-Q8_0"),
        (&repo[..2], None, "has no MTP sidecar (mtp-*.gguf)"),
        // A whole model is never taken for a head because its quant fits.
        (&repo[..2], Some("Q8_0"), "has no MTP sidecar (mtp-*.gguf)"),
    ] {
        assert!(head(names, quant).unwrap_err().starts_with(part), "{:?}", head(names, quant));
    }
}

#[test]
fn a_whole_name_is_that_file() {
    let repo = [
        "m-Q8_0.gguf",
        "x-m-Q8_0.gguf",
        "mtp-m-Q8_0.gguf",
        "head.gguf",
        "Q4_0/b-00001-of-00002.gguf",
        "Q4_0/b-00002-of-00002.gguf",
        "mmproj-F16.gguf",
        "1/c.gguf",
        "2/c.gguf",
    ];
    for (name, index) in [
        ("m-Q8_0.gguf", 0),
        ("M-q8_0.GGUF", 0),
        ("mtp-m-Q8_0.gguf", 2),
        ("head.gguf", 3),
        ("b-00002-of-00002.gguf", 4),
        ("mmproj-F16.gguf", 6),
    ] {
        for wanted in [Wanted::Model, Wanted::Sidecar] {
            let found = choose(&repo, Some(name), wanted).unwrap();
            assert!(matches!(found.chosen, Chosen::Gguf(files) if files[0] == index), "{name}");
            assert!(found.certain && found.mtp.is_none());
        }
    }
    assert_eq!(files(&repo, Some("b-00001-of-00002.gguf")).unwrap(), format!("{} {}", repo[4], repo[5]));
    for (name, part) in [
        ("Q8_0.gguf", "has no file Q8_0.gguf; it has 1/c, 2/c, Q4_0/b"),
        ("c.gguf", "has 2 files c.gguf: 1/c, 2/c"),
        ("b-00001-of-00003.gguf", "has no file b-00001-of-00003.gguf"),
    ] {
        let error = files(&repo, Some(name)).unwrap_err();
        assert!(error.starts_with(part), "{error}");
    }
}
