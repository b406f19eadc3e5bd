//! The tensors of an architecture, listed without a file: what the loader would ask one for.

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
    let head = plan::trunk(&mut b).head;
    let (table, _) = b.embedding();
    b.rope_factors();
    if config.arch.has_mtp() && config.nextn == 1 {
        plan::block(&mut b, Source::Model, config, (table, head));
    }
    b.wants.asked
}
