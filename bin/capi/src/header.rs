//! The header is what the source says: generated here, compared with the committed one.

use std::path::Path;

/// Set to write the header instead of comparing it.
const UPDATE: &str = "UPDATE_HEADER";

#[test]
fn the_header_is_what_the_source_says() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = ["src/types.rs", "src/lib.rs"].into_iter().fold(builder, |b, file| b.with_src(package.join(file)));
    let mut generated = Vec::new();
    builder.generate().unwrap().write(&mut generated);
    let path = package.join("include/slipstream.h");
    if std::env::var_os(UPDATE).is_some() {
        return std::fs::write(path, generated).unwrap();
    }
    let committed = std::fs::read(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "include/slipstream.h differs from the source; write it anew with `{UPDATE}=1 cargo test -p engine-capi header`"
    );
}
