//! The tensors of an architecture, listed without a file: what the loader would ask one for.

use std::fmt::Write as _;

use engine_io::digest::Sha256;

use super::builder::Builder;
use super::config::Config;
use super::conventions::Conventions;
use super::plan;
pub use super::tensors::{Asked, Role};
use super::tensors::{Inventory, Source, Wants};

/// Every tensor that the loader asks a model of this configuration for, in its order: the trunk, then the MTP block
/// if there is one. Of layouts that differ, such as a fused projection, the plain one is listed; the rows of tables are
/// the tokens of the configuration, which a file may exceed.
pub fn schema(config: &Config) -> Vec<Asked> {
    let nothing = Inventory::new(&[]);
    let mut b = Builder::new(config, Conventions::default(), Wants::new(&nothing, None));
    let head = plan::trunk(&mut b).head.expect("a whole model has a head");
    b.embedding();
    b.rope_factors();
    if config.arch.has_mtp() && config.nextn == 1 {
        plan::block(&mut b, Source::Model, config, head);
    }
    b.wants.asked
}

/// Version of the lists of all architectures: one more whenever a name, a shape or what is required changes, so that a
/// file made for another list can be told.
pub const VERSION: u32 = 1;

/// Name of the list of an architecture, such as `qwen4exp/1`.
pub fn id(config: &Config) -> String {
    format!("{}/{VERSION}", config.arch.name())
}

/// Digest of the list itself: a line a tensor, `name TAB d0xd1x.. TAB required or optional LF`, in the loader's order.
pub fn digest(config: &Config) -> Sha256 {
    let mut text = String::new();
    for Asked { name, dims, optional, .. } in schema(config) {
        let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
        let need = if optional { "optional" } else { "required" };
        let _ = writeln!(text, "{name}\t{}\t{need}", dims.join("x"));
    }
    Sha256::of(text.as_bytes())
}
