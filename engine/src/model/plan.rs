//! From metadata and tensor directory to a program and the list of what must be loaded. Touches no tensor data.

use std::collections::HashSet;

use engine_io::compat;
use engine_kernels::Quant;
use engine_kernels::ops::ngram::NgramHash;

use super::builder::Builder;
use super::config::{Arch, Config, Qwen4ExpConfig};
use super::conventions::Conventions;
use super::error::ModelError;
use super::preflight::Preflight;
use super::program::{MatrixId, MtpProgram, Op, Program, Trunk};
use super::stage::Stage;
use super::tensors::{Inventory, Source, WantedMatrix, WantedVector, Wants};
use super::{counts, llama, mtp_block, nemotron_h, qwen4exp, qwen35, sidecar};

/// One model file as planning sees it.
#[derive(Clone, Copy)]
pub struct FileView<'a> {
    /// Path, for messages.
    pub path: &'a str,
    /// Its hyperparameters.
    pub config: &'a Config,
    /// Its tensors, under canonical names.
    pub tensors: &'a Inventory<'a>,
    /// Why the head that it has cannot be read.
    pub refused: Option<&'a str>,
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

/// Weights by their format, a matrix or a stack of experts each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowWeights {
    /// Of the blocks.
    pub trunk: Vec<(Quant, u64)>,
    /// Of the LM head, which a prompt needs for its last row alone.
    pub head: Vec<(Quant, u64)>,
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
    /// The blocks that are run.
    pub stage: Stage,
    /// Rows of the embedding and of the head.
    pub vocab_rows: usize,
    /// Ids that mean something: `0..vocab`, at most `vocab_rows`.
    pub vocab: usize,
    /// The MTP block.
    pub mtp: MtpStatus,
    /// Tensors of the model, then of the draft file's block, that no operation reads.
    pub unexpected: Vec<String>,
    /// The plan is of a sidecar without its target: tensors of [`Source::Model`] are in no file.
    pub alone: bool,
}

impl Plan {
    /// Bytes that a trunk pass over one row reads of its matrices, the LM head's included, as the file stores them: of
    /// experts those that the row chooses, of tables that are looked up nothing.
    pub fn row_bytes(&self) -> u64 {
        let RowWeights { trunk, head } = self.row_weights();
        let bytes = |(quant, weights): &(Quant, u64)| weights / quant.block_len() as u64 * quant.block_bytes() as u64;
        trunk.iter().chain(&head).map(bytes).sum()
    }

    /// Weights that one row of a trunk pass is multiplied with: of experts those that it chooses.
    pub fn row_weights(&self) -> RowWeights {
        let all = |id: &MatrixId| {
            let want = &self.matrices[id.index()];
            (want.quant, (want.n * want.k * want.slabs.count) as u64)
        };
        let of = |op: &Op| -> Vec<(Quant, u64)> {
            match op {
                Op::MatMul { outputs, .. } => outputs.iter().map(|(id, _)| all(id)).collect(),
                Op::Experts(e) => {
                    let stacks = [Some(e.up), Some(e.down), e.gate].into_iter().flatten().map(|id| all(&id));
                    let (experts, used) = (e.router.experts as u64, e.router.used as u64);
                    stacks.map(|(quant, weights)| (quant, weights / experts * used)).collect()
                }
                _ => Vec::new(),
            }
        };
        RowWeights {
            trunk: self.program.trunk.iter().flat_map(of).collect(),
            head: self.program.head.iter().map(all).collect(),
        }
    }

    /// Plans `stage` of `model`, with the MTP block of `draft` if given, else its own if it has one. A stage that is not
    /// the last has none.
    ///
    /// # Errors
    /// Everything that is wrong with the model's tensors in one [`ModelError::Preflight`]; tensors that nothing reads
    /// are part of it in `strict` mode only, or in a draft file whose head they belong to. A draft file that does not fit
    /// is an error, an own block that is incomplete is not: the trunk can be run without.
    pub fn new(
        model: FileView<'_>,
        stage: Stage,
        draft: Option<FileView<'_>>,
        strict: bool,
        conventions: Conventions,
    ) -> Result<Self, ModelError> {
        conventions.check(model.path, model.config)?;
        // The last stage of a model has no blk.0 either.
        if stage.is_first() {
            sidecar::refuse(model)?;
        }
        counts::refuse_miscounted(model)?;
        refuse_flat_table(model)?;
        refuse_unhashed(model)?;
        refuse_scales(model)?;
        if let Some(draft) = draft {
            refuse_scales(draft)?;
            sidecar::check(model, draft)?;
        }
        let mut b = Builder::new(model.config, conventions, Wants::new(model.tensors, draft.map(|d| d.tensors)));
        b.stage = stage;
        let Trunk { ops: trunk, received, hidden, head_in, head } = self::trunk(&mut b);
        let vocab_rows = b.table_rows();
        let rope_factors = if stage.is_whole() || !b.kv.is_empty() { b.rope_factors() } else { None };
        let mut beside = Vec::new();
        let (mtp, status) = match (head, draft) {
            (None, _) => (None, MtpStatus::Unavailable(format!("{}: the MTP block is on the last stage", model.path))),
            (Some(head), Some(draft)) => {
                let (_, before) = b.wants.mark();
                let mtp = block(&mut b, Source::Draft, draft.config, head);
                let dense = dense_indexers(draft.config);
                b.wants.note_unexpected(Source::Draft, |name| starts(name, &dense));
                let report = std::mem::replace(&mut b.wants.report, before);
                let strict = strict || report.unexpected.iter().any(|name| sidecar::is_of_head(name));
                beside.extend(report.into_result(draft.path, strict)?);
                (Some(mtp), MtpStatus::Sidecar)
            }
            (Some(head), None) => own_block(&mut b, model, head),
        };
        if let (true, None, MtpStatus::Unavailable(reason)) = (strict && stage.is_last(), draft, &status) {
            refuse_unread_head(model, reason)?;
        }
        // Announced NextN blocks that are not used, because of a sidecar or a fault, belong to the model all the same.
        let unused = match status {
            MtpStatus::Own => 0..0,
            MtpStatus::Sidecar | MtpStatus::Unavailable(_) => model.config.trunk..model.config.blocks.len(),
        };
        let unused = unused.map(|i| format!("blk.{i}."));
        let unused: Vec<String> = unused.chain(dense_indexers(model.config)).collect();
        let elsewhere = if stage.is_whole() { HashSet::new() } else { names_of_all(model, conventions) };
        b.wants.note_unexpected(Source::Model, |name| starts(name, &unused) || elsewhere.contains(name));
        b.wants.report.set_apart(model.config.trunk);

        let Builder { wants, buffers, kv, index, recurrent, config, .. } = b;
        let Wants { matrices, vectors, report, .. } = wants;
        let mut unexpected = report.into_result(model.path, strict)?;
        unexpected.extend(beside);
        let program = Program {
            buffers: buffers.finish(),
            trunk,
            received,
            hidden,
            head_in,
            head,
            mtp,
            kv,
            recurrent,
            index,
            ngrams: config.qwen4exp.as_ref().and_then(|own| ngrams_of(own, stage)),
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
        Ok(Self { program, matrices, vectors, stage, vocab_rows, vocab, mtp: status, unexpected, alone: false })
    }
}

impl Plan {
    /// Plans a sidecar without its target: the block alone. What it borrows is asked of a model that is not there.
    ///
    /// # Errors
    /// A file that is no sidecar, or whose block lacks tensors of its own.
    pub fn sidecar(file: FileView<'_>, conventions: Conventions) -> Result<Self, ModelError> {
        conventions.check(file.path, file.config)?;
        refuse_scales(file)?;
        sidecar::require(file)?;
        let none = Inventory::new(&[]);
        let mut b = Builder::new(file.config, conventions, Wants::new(&none, Some(file.tensors)));
        let rows = file.config.tokens.map_or(1, |t| t.len);
        b.wants.matrix(Source::Model, "token_embd.weight", rows, file.config.d_model);
        let head = b.wants.matrix(Source::Model, "output.weight", rows, file.config.d_model);
        let mtp = block(&mut b, Source::Draft, file.config, head);
        let Builder { wants, buffers, kv, index, recurrent, config, .. } = b;
        let Wants { matrices, vectors, mut report, .. } = wants;
        report.missing.retain(|name| name.starts_with("blk."));
        let asked = |name: &str| matrices.iter().any(|m| m.name == name) || vectors.iter().any(|v| v.name == name);
        let dense = dense_indexers(file.config);
        let rest = file.tensors.names().filter(|name| !asked(name) && !starts(name, &dense));
        report.unexpected = rest.map(str::to_owned).collect();
        let strict = report.unexpected.iter().any(|name| sidecar::is_of_head(name));
        let unexpected = report.into_result(file.path, strict)?;
        let program = Program {
            buffers: buffers.finish(),
            trunk: Vec::new(),
            received: None,
            hidden: mtp.hidden_in,
            head_in: mtp.head_in,
            head: Some(mtp.head),
            index,
            ngrams: None,
            mtp: Some(mtp),
            kv,
            recurrent,
            rope: config.rope,
            rope_factors: None,
            norm_eps: config.norm_eps,
        };
        let mtp = MtpStatus::Sidecar;
        let stage = Stage::whole(file.config.trunk);
        Ok(Self { program, matrices, vectors, stage, vocab_rows: rows, vocab: rows, mtp, unexpected, alone: true })
    }
}

/// The model's own block; whatever is wrong with it only costs the drafts.
fn own_block(b: &mut Builder<'_>, model: FileView<'_>, target: MatrixId) -> (Option<MtpProgram>, MtpStatus) {
    let FileView { path, config, tensors, refused } = model;
    let remedies = "use a file converted with its MTP block, put a published one behind it (engine-pack graft), or give an \
                    MTP sidecar as the draft model (--spec-draft-model)";
    let unavailable = |reason: String| (None, MtpStatus::Unavailable(reason));
    let has_nextn = |i: usize| tensors.names().any(|n| n.starts_with(&format!("blk.{i}.nextn.")));
    let arch = config.arch.name();
    if !config.arch.has_mtp() {
        return unavailable(format!("{path}: architecture {arch} has no MTP block"));
    }
    if let Some(reason) = refused {
        return unavailable(format!("{path}: its MTP block cannot be read: {reason}; {remedies}"));
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

/// The trunk of the model whose configuration `b` has.
pub fn trunk(b: &mut Builder<'_>) -> Trunk {
    match b.config.arch {
        Arch::Llama => llama::trunk(b),
        Arch::Qwen35 | Arch::Qwen35Moe | Arch::Qwen3Next => qwen35::trunk(b),
        Arch::NemotronH | Arch::NemotronHMoe => nemotron_h::trunk(b),
        Arch::Qwen4Exp => qwen4exp::trunk(b),
    }
}

/// The MTP block of a file with the configuration `config`; `head` is the target's.
pub fn block(b: &mut Builder<'_>, from: Source, config: &Config, head: MatrixId) -> MtpProgram {
    let index = config.trunk;
    let block = &config.blocks[index];
    match &config.qwen4exp {
        Some(own) => qwen4exp::mtp(b, from, index, (block, own.ratio[index]), head),
        None => mtp_block::build(b, from, index, block, head),
    }
}

/// What a block that a model of this configuration has behind its trunk lacks of what is asked for, or has otherwise.
pub fn report_of_block(config: &Config, tensors: &Inventory<'_>) -> Preflight {
    let mut b = Builder::new(config, Conventions::default(), Wants::new(tensors, None));
    let head = trunk(&mut b).head.expect("a whole model has a head");
    // The trunk is none of this.
    b.wants.mark();
    block(&mut b, Source::Model, config, head);
    b.wants.report
}

/// Names of all tensors that the stages of a model ask for together.
fn names_of_all(model: FileView<'_>, conventions: Conventions) -> HashSet<String> {
    let mut b = Builder::new(model.config, conventions, Wants::new(model.tensors, None));
    let head = trunk(&mut b).head.expect("a whole model has a head");
    b.embedding();
    b.rope_factors();
    if model.config.arch.has_mtp() && model.config.nextn == 1 {
        block(&mut b, Source::Model, model.config, head);
    }
    b.wants.asked.into_iter().map(|asked| asked.name).collect()
}

/// How tokens name rows of the n-gram table, for the stage that has the block which looks them up.
fn ngrams_of(own: &Qwen4ExpConfig, stage: Stage) -> Option<NgramHash> {
    let ngram = own.ngram.as_ref()?;
    stage.blocks().any(|id| id.0 == ngram.block).then(|| ngram.hash.clone())
}

/// Blocks whose attention is dense have an indexer all the same.
fn dense_indexers(config: &Config) -> Vec<String> {
    let ratio = config.qwen4exp.as_ref().map_or(&[][..], |own| &own.ratio);
    let dense = ratio.iter().enumerate().filter(|(_, ratio)| **ratio == 0);
    dense.map(|(i, _)| format!("blk.{i}.indexer.")).collect()
}

fn starts(name: &str, prefixes: &[String]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
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

/// In strict mode everything that is in the file is read, or the reason why it cannot be is the error.
fn refuse_unread_head(model: FileView<'_>, reason: &str) -> Result<(), ModelError> {
    let FileView { path, config, tensors, .. } = model;
    let of_head = |name: &str| match compat::block_of(name) {
        Some((i, rest)) => i >= config.trunk && (i < config.blocks.len() || rest.starts_with("nextn.")),
        None => compat::is_top_level_head(name),
    };
    match tensors.names().find(|name| of_head(name)) {
        Some(example) => Err(ModelError::UnreadHead {
            file: path.to_owned(),
            example: example.to_owned(),
            reason: reason.to_owned(),
        }),
        None => Ok(()),
    }
}

/// One row for all tokens would be taken for a table of one token.
fn refuse_flat_table(model: FileView<'_>) -> Result<(), ModelError> {
    let name = "token_embd.weight";
    match model.tensors.get(name).filter(|t| t.dims().len() < 2) {
        Some(t) => Err(engine_io::Error::Inconsistent {
            file: model.path.to_owned(),
            found: format!("{name} has dimensions {:?}", t.dims()),
            expected: format!("two, [{}, number of tokens]; convert the model again", model.config.d_model),
        }
        .into()),
        None => Ok(()),
    }
}

/// A scale multiplies the product of the weight it belongs to: ignoring it would compute something else.
fn refuse_scales(model: FileView<'_>) -> Result<(), ModelError> {
    let scale = |n: &&str| n.starts_with("blk.") && (n.ends_with(".scale") || n.ends_with(".input_scale"));
    let Some(example) = model.tensors.names().find(scale) else { return Ok(()) };
    let count = model.tensors.names().filter(scale).count();
    Err(ModelError::Scales { file: model.path.to_owned(), count, example: example.to_owned() })
}
