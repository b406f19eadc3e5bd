//! From metadata and tensor directory to a program and the list of what must be loaded. Touches no tensor data.

use super::builder::Builder;
use super::config::{Arch, Config, ExpertsConfig, Ffn, Mixer};
use super::conventions::Conventions;
use super::error::ModelError;
use super::program::{MatrixId, MtpProgram, Program, Trunk};
use super::tensors::{Inventory, Source, WantedMatrix, WantedVector, Wants};
use super::{llama, mtp_block, nemotron_h, qwen4exp, qwen35};

/// One model file as planning sees it.
#[derive(Clone, Copy)]
pub struct FileView<'a> {
    /// Path, for messages.
    pub path: &'a str,
    /// Its hyperparameters.
    pub config: &'a Config,
    /// Its tensors.
    pub tensors: &'a Inventory<'a>,
}

/// Where the MTP block comes from, or why there is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MtpStatus {
    /// The model's own NextN block.
    Own,
    /// The draft file.
    Sidecar,
    /// Nothing to draft with: the reason, and what would help.
    Unavailable(String),
}

/// What to load and what to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The operations.
    pub program: Program,
    /// Matrices in order of their ids.
    pub matrices: Vec<WantedMatrix>,
    /// Vectors in order of their ids.
    pub vectors: Vec<WantedVector>,
    /// Rows of the embedding and of the head.
    pub vocab_rows: usize,
    /// Ids that mean something: `0..vocab`, at most `vocab_rows`.
    pub vocab: usize,
    /// The MTP block.
    pub mtp: MtpStatus,
    /// Tensors of the model that no operation reads.
    pub unexpected: Vec<String>,
}

impl Plan {
    /// Plans `model`, with the MTP block of `draft` if given, else its own if it has one.
    ///
    /// # Errors
    /// Everything that is wrong with the model's tensors in one [`ModelError::Preflight`]; tensors that nothing reads
    /// are part of it in `strict` mode only. A draft file that does not fit is an error, an own block that is
    /// incomplete is not: the trunk can be run without.
    pub fn new(
        model: FileView<'_>,
        draft: Option<FileView<'_>>,
        strict: bool,
        conventions: Conventions,
    ) -> Result<Self, ModelError> {
        conventions.check(model.path, model.config)?;
        refuse_sidecar(model)?;
        refuse_miscounted_blocks(model)?;
        refuse_unhashed(model)?;
        refuse_scales(model)?;
        if let Some(draft) = draft {
            refuse_scales(draft)?;
            check_sidecar(model, draft)?;
        }
        let mut b = Builder::new(model.config, conventions, Wants::new(model.tensors, draft.map(|d| d.tensors)));
        let Trunk { ops: trunk, hidden, head_in, head } = match model.config.arch {
            Arch::Llama => llama::trunk(&mut b),
            Arch::Qwen35 | Arch::Qwen35Moe => qwen35::trunk(&mut b),
            Arch::NemotronH | Arch::NemotronHMoe => nemotron_h::trunk(&mut b),
            Arch::Qwen4Exp => qwen4exp::trunk(&mut b),
        };
        let (table, vocab_rows) = b.embedding();
        let rope_factors = b.rope_factors();
        let (mtp, status) = match draft {
            Some(draft) => {
                let (_, before) = b.wants.mark();
                let mtp = block(&mut b, Source::Draft, draft.config, (table, head));
                let report = std::mem::replace(&mut b.wants.report, before);
                report.into_result(draft.path, false)?;
                (Some(mtp), MtpStatus::Sidecar)
            }
            None => own_block(&mut b, model, (table, head)),
        };
        // Announced NextN blocks that are not used, because of a sidecar or a fault, belong to the model all the same.
        let unused = match status {
            MtpStatus::Own => 0..0,
            MtpStatus::Sidecar | MtpStatus::Unavailable(_) => model.config.trunk..model.config.blocks.len(),
        };
        let unused = unused.map(|i| format!("blk.{i}."));
        // A block whose attention is dense has an indexer all the same.
        let ratio = model.config.qwen4exp.as_ref().map_or(&[][..], |own| &own.ratio);
        let dense = ratio.iter().enumerate().filter(|(_, ratio)| **ratio == 0);
        let unused: Vec<String> = unused.chain(dense.map(|(i, _)| format!("blk.{i}.indexer."))).collect();
        b.wants.note_unexpected(|name| unused.iter().any(|prefix| name.starts_with(prefix.as_str())));

        let Builder { wants, buffers, kv, index, recurrent, config, .. } = b;
        let Wants { matrices, vectors, report, .. } = wants;
        let unexpected = report.into_result(model.path, strict)?;
        let program = Program {
            buffers: buffers.finish(),
            trunk,
            hidden,
            head_in,
            head,
            mtp,
            kv,
            recurrent,
            index,
            ngrams: config.qwen4exp.as_ref().and_then(|own| Some(own.ngram.as_ref()?.hash.clone())),
            rope: config.rope,
            rope_factors,
            norm_eps: config.norm_eps,
        };
        let vocab = config.tokens.map_or(vocab_rows, |t| t.len);
        if vocab == 0 || vocab > vocab_rows {
            return Err(engine_io::Error::Inconsistent {
                file: model.path.to_owned(),
                found: format!("tokenizer.ggml.tokens has {vocab} entries, token_embd.weight {vocab_rows} rows"),
                expected: String::from("a row for every token; convert the model again"),
            }
            .into());
        }
        Ok(Self { program, matrices, vectors, vocab_rows, vocab, mtp: status, unexpected })
    }
}

/// The model's own block; whatever is wrong with it only costs the drafts.
fn own_block(
    b: &mut Builder<'_>,
    model: FileView<'_>,
    target: (MatrixId, MatrixId),
) -> (Option<MtpProgram>, MtpStatus) {
    let FileView { path, config, tensors } = model;
    let remedies = "use a file converted with its MTP block, or give an MTP sidecar as the draft model";
    let unavailable = |reason: String| (None, MtpStatus::Unavailable(reason));
    let has_nextn = |i: usize| tensors.names().any(|n| n.starts_with(&format!("blk.{i}.nextn.")));
    let arch = config.arch.name();
    if !config.arch.has_mtp() {
        return unavailable(format!("{path}: architecture {arch} has no MTP block"));
    }
    match config.nextn {
        0 if has_nextn(config.trunk) => {
            return unavailable(format!(
                "{path}: has blk.{}.nextn.* tensors but no {arch}.nextn_predict_layers key; {remedies}",
                config.trunk
            ));
        }
        0 => {
            return unavailable(format!("{path}: has no blk.{}.nextn.* tensors; {remedies}", config.trunk));
        }
        1 => {}
        n => {
            return unavailable(format!("{path}: {arch}.nextn_predict_layers = {n}, expected 1; {remedies}"));
        }
    }
    let (layers, indexed) = (b.kv.len(), b.index.len());
    let (mark, before) = b.wants.mark();
    let mtp = block(b, Source::Model, config, target);
    let report = std::mem::replace(&mut b.wants.report, before);
    if report.is_usable(false) {
        return (Some(mtp), MtpStatus::Own);
    }
    b.wants.rewind(&mark);
    b.kv.truncate(layers);
    b.index.truncate(indexed);
    let what = match has_nextn(config.trunk) {
        false => format!("{arch}.nextn_predict_layers = 1, but there are no blk.{}.nextn.* tensors", config.trunk),
        true => format!("its MTP block blk.{} does not fit:\n{report}\n", config.trunk),
    };
    unavailable(format!("{path}: {what}; {remedies}"))
}

/// Blocks are told apart by their number alone. A NextN block that the counts place in the trunk, or behind all blocks
/// while the trunk's last one is taken for it, would leave a model with a block too many or too few.
fn refuse_miscounted_blocks(model: FileView<'_>) -> Result<(), ModelError> {
    let FileView { path, config, tensors } = model;
    let block = |name: &str| name.strip_prefix("blk.")?.split_once(".nextn.")?.0.parse::<usize>().ok();
    let (trunk, all) = (config.trunk, config.blocks.len());
    let misplaced = |&i: &usize| i < trunk || (config.nextn > 0 && i >= all);
    let Some(i) = tensors.names().filter_map(block).find(misplaced) else { return Ok(()) };
    let arch = config.arch.name();
    Err(engine_io::Error::Inconsistent {
        file: path.to_owned(),
        found: format!(
            "blk.{i}.nextn.* tensors with {arch}.block_count {all} and {arch}.nextn_predict_layers {}",
            config.nextn
        ),
        expected: String::from(
            "a block_count that counts the NextN block, and nextn_predict_layers 1; convert or compose the model again",
        ),
    }
    .into())
}

/// The MTP block of a file with the configuration `config`; `table` and `head` are the target's.
fn block(b: &mut Builder<'_>, from: Source, config: &Config, (table, head): (MatrixId, MatrixId)) -> MtpProgram {
    let index = config.trunk;
    let block = &config.blocks[index];
    match &config.qwen4exp {
        Some(own) => qwen4exp::mtp(b, from, index, (block, own.ratio[index]), (table, head)),
        None => mtp_block::build(b, from, index, block, table, head),
    }
}

/// Tables and projections of n-grams without the keys that say how tokens name their rows: leaving them out would
/// compute something else.
fn refuse_unhashed(model: FileView<'_>) -> Result<(), ModelError> {
    let Some(own) = &model.config.qwen4exp else { return Ok(()) };
    let ngram = |n: &&str| *n == "per_layer_token_embd.weight" || n.starts_with("blk.") && n.contains(".ple_");
    let block = own.ngram.as_ref().map(|ngram| format!("blk.{}.ple_", ngram.block));
    let stray = |n: &&str| ngram(n) && block.as_ref().is_none_or(|b| n.starts_with("blk.") && !n.starts_with(b));
    let Some(example) = model.tensors.names().find(stray) else { return Ok(()) };
    Err(engine_io::Error::Inconsistent {
        file: model.path.to_owned(),
        found: format!("tensor {example}, but qwen4exp.ple.layers does not name its block"),
        expected: String::from("the keys qwen4exp.ple.* that say how tokens name rows; convert the model again"),
    }
    .into())
}

/// A scale multiplies the product of the weight it belongs to: ignoring it would compute something else.
fn refuse_scales(model: FileView<'_>) -> Result<(), ModelError> {
    let scale = |n: &&str| n.starts_with("blk.") && (n.ends_with(".scale") || n.ends_with(".input_scale"));
    let Some(example) = model.tensors.names().find(scale) else { return Ok(()) };
    let count = model.tensors.names().filter(scale).count();
    Err(ModelError::Scales { file: model.path.to_owned(), count, example: example.to_owned() })
}

/// Heads of `qwen4exp` under other names: a guess at their meaning would draft, and draft badly.
fn foreign_head(file: FileView<'_>) -> Option<String> {
    file.config.qwen4exp.as_ref()?;
    let block = file.config.trunk;
    let has = |name: String| file.tensors.has(&name);
    let trunk = file.tensors.names().any(|n| n.starts_with("blk.0."));
    let eh_proj = format!("blk.{block}.nextn.eh_proj.weight");
    let halves = |n: &&str| n.contains("fc_embd") || n.contains("fc_hidden") || n.contains("fc_embedding");
    if let Some(half) = file.tensors.names().find(halves).filter(|_| !has(eh_proj.clone())) {
        return Some(format!("it has {half} instead of {eh_proj}; use a head whose two halves are one matrix"));
    }
    let own = format!("blk.{block}.nextn.hc_head_norm.weight");
    if !trunk && has(String::from("output_hc_norm.weight")) && !has(own.clone()) {
        return Some(format!(
            "its last mixer is called output_hc_*, which may be the trunk's as well as the head's own; use a head with \
             {own}"
        ));
    }
    None
}

fn is_sidecar(file: FileView<'_>) -> bool {
    let nextn = format!("blk.{}.nextn.eh_proj.weight", file.config.trunk);
    file.config.nextn > 0 && !file.tensors.names().any(|n| n.starts_with("blk.0.")) && file.tensors.has(&nextn)
}

fn refuse_sidecar(model: FileView<'_>) -> Result<(), ModelError> {
    if !is_sidecar(model) {
        return Ok(());
    }
    Err(ModelError::Sidecar { file: model.path.to_owned(), arch: model.config.arch.name(), block: model.config.trunk })
}

/// A sidecar must be one NextN block of a model with the target's shape and vocabulary.
fn check_sidecar(model: FileView<'_>, draft: FileView<'_>) -> Result<(), ModelError> {
    let not = |reason: String| Err(ModelError::NotASidecar { file: draft.path.to_owned(), reason });
    if draft.config.nextn != 1 {
        return not(format!("its nextn_predict_layers is {}, expected 1", draft.config.nextn));
    }
    if let Some(reason) = foreign_head(draft) {
        return not(reason);
    }
    if !is_sidecar(draft) {
        let block = draft.config.trunk;
        return not(format!(
            "expected the tensors of blk.{block} alone, with nextn ones; found blocks of a trunk or none"
        ));
    }
    let (t, d) = (model.config, draft.config);
    let heads = |c: &Config| {
        c.blocks.iter().rev().find(|b| b.mixer == Mixer::Attention).map_or((0, 0), |b| (b.heads, b.kv_heads))
    };
    let compare = [
        ("general.architecture", d.arch.name().into(), t.arch.name().into()),
        ("embedding_length", d.d_model.to_string(), t.d_model.to_string()),
        ("trunk length", d.trunk.to_string(), t.trunk.to_string()),
        ("attention.key_length", d.head_dim.to_string(), t.head_dim.to_string()),
        ("attention.head_count, head_count_kv", format!("{:?}", heads(d)), format!("{:?}", heads(t))),
        ("rope", format!("{:?}", d.rope), format!("{:?}", t.rope)),
        ("layer_norm_rms_epsilon", d.norm_eps.to_string(), t.norm_eps.to_string()),
        ("layer_norm_epsilon", format!("{:?}", d.layer_norm_eps), format!("{:?}", t.layer_norm_eps)),
        ("attention.scale", d.attention_scale.to_string(), t.attention_scale.to_string()),
        ("number of tokens", format!("{:?}", d.tokens.map(|l| l.len)), format!("{:?}", t.tokens.map(|l| l.len))),
        (
            "hash of the token list",
            format!("{:x?}", d.tokens.map(|l| l.hash)),
            format!("{:x?}", t.tokens.map(|l| l.hash)),
        ),
    ];
    // Blocks of the target may be a mixer alone.
    let ffn = |c: &Config| ffn_numbers(c.blocks.iter().map(|b| b.ffn).rfind(|f| *f != Ffn::None).unwrap_or(Ffn::None));
    let ffn = ffn(d).into_iter().zip(ffn(t)).map(|((what, d), (_, t))| (what, d, t));
    let own = |c: &Config| {
        let own = c.qwen4exp.as_ref();
        let number = |of: fn(&super::config::Qwen4ExpConfig) -> String| own.map_or_else(|| String::from("none"), of);
        [
            ("hyper_connection.count", number(|own| own.streams.to_string())),
            ("hyper_connection.low_rank", number(|own| own.low_rank.to_string())),
            ("attention.indexer", number(|own| format!("{:?}", own.indexer))),
        ]
    };
    let own = own(d).into_iter().zip(own(t)).map(|((what, d), (_, t))| (what, d, t));
    for (what, draft_value, target) in compare.into_iter().chain(ffn).chain(own) {
        if draft_value != target {
            return Err(ModelError::Mismatch {
                file: draft.path.to_owned(),
                what: what.to_owned(),
                draft: draft_value,
                target,
            });
        }
    }
    Ok(())
}

/// The numbers of an FFN that a sidecar's block must share with the trunk, by their keys.
fn ffn_numbers(ffn: Ffn) -> [(&'static str, String); 7] {
    let dense = match ffn {
        Ffn::Dense { width, .. } => Some(width),
        Ffn::None | Ffn::Experts(_) => None,
    };
    let experts = match ffn {
        Ffn::Experts(e) => Some(e),
        Ffn::None | Ffn::Dense { .. } => None,
    };
    let none = || String::from("none");
    let number = |of: fn(&ExpertsConfig) -> usize| experts.map_or_else(none, |e| of(&e).to_string());
    [
        ("feed_forward_length", dense.map_or_else(none, |width| width.to_string())),
        ("expert_count", number(|e| e.router.experts)),
        ("expert_used_count", number(|e| e.router.used)),
        ("expert_feed_forward_length", number(|e| e.width)),
        ("expert_shared_feed_forward_length", number(|e| e.shared_width)),
        ("moe_latent_size", experts.and_then(|e| e.latent).map_or_else(none, |width| width.to_string())),
        ("router", experts.map_or_else(none, |e| format!("{:?}", e.router))),
    ]
}
