//! prefix: what the prefix cache knows, a tree over KV pages. Read by admit; written by admit (uses), plan (eviction),
//! keep and retire (insertion).
//!
//! ```text
//! node   1..=16 tokens behind those of its parent, and the page that holds them; only full nodes have children
//!        └─ a checkpoint, maybe: the sequence's state behind the node's last token
//! top    nodes that begin a sequence, each under a namespace; below it the tree keeps namespaces apart
//! ```
//!
//! A page of the tree is never written again: rows share it, and copy it before they write into it. Where a sequence is
//! more than its pages (recurrent layers, an MTP block's carry) a prefix can be used only up to a checkpoint; elsewhere up
//! to any token. What nobody used for the longest time goes first, leaves before their parents.
//! Invariants: a node holds its page, once; a page that the tree alone holds can be had back by eviction.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};

use crate::api::Miss;
use crate::ids::{CheckpointId, PageId, Slot, StateSlot, TokenId};
use crate::limits::{Limits, PAGE_TOKENS};
use crate::step::SlotOp;
use crate::tables::pages::Pages;

/// Evicted nodes that are remembered, to say why a prefix is not there.
const GONE_MAX: usize = 4096;

/// A row of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
struct Node(u32);

impl Node {
    const NONE: Self = Self(u32::MAX);

    fn index(self) -> usize {
        debug_assert!(self != Self::NONE);
        self.0 as usize
    }

    fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

/// What the tree has of a prompt.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hit {
    /// Positions that need not be computed.
    pub len: u32,
    /// Pages that hold them; the last may hold more.
    pub pages: Vec<PageId>,
    /// The state behind them, where one is needed.
    pub checkpoint: Option<CheckpointId>,
    /// Leading tokens that are known, used or not.
    pub matched: u32,
    /// Why not everything but the last token came from the cache.
    pub miss: Option<Miss>,
}

/// The tree.
#[derive(Debug)]
pub struct Prefix {
    /// A prefix can be used at checkpoints only.
    stateful: bool,
    /// What the Executor may hold.
    checkpoints_max: usize,
    // Columns, by node. `len` 0: nobody's.
    parent: Vec<Node>,
    child: Vec<Node>,
    next: Vec<Node>,
    previous: Vec<Node>,
    len: Vec<u8>,
    token: Vec<[TokenId; PAGE_TOKENS]>,
    page: Vec<PageId>,
    /// Nodes at the top: whose they are. Hash of the tokens from the start elsewhere too.
    namespace: Vec<u64>,
    hash: Vec<u64>,
    /// Last use.
    used: Vec<u64>,
    checkpoint: Vec<CheckpointId>,
    /// Last use of the checkpoint.
    checkpoint_used: Vec<u64>,
    // Lists.
    top: Node,
    free: Vec<Node>,
    free_checkpoint: Vec<CheckpointId>,
    /// Nodes with a checkpoint.
    saved: Vec<Node>,
    gone: VecDeque<u64>,
    gone_set: HashSet<u64>,
    /// Memory of [`Self::make_room`].
    leaves: Vec<Reverse<(u64, Node)>>,
    clock: u64,
    /// Pages and checkpoints that went to make room, ever.
    pub evicted: (u64, u64),
    /// Look-ups, ever.
    pub asked: u64,
    /// See [`Self::changes`].
    changes: u64,
}

impl Prefix {
    /// An empty tree; one without rows, which keeps nothing, where `limits` have no prefix cache.
    /// `stateful`: a sequence is more than its pages.
    pub fn new(limits: &Limits, stateful: bool) -> Self {
        let nodes = Self::nodes(limits, stateful);
        let checkpoints = if stateful && nodes > 0 { limits.checkpoints } else { 0 };
        let gone = if nodes > 0 { GONE_MAX } else { 0 };
        Self {
            stateful,
            checkpoints_max: checkpoints,
            parent: vec![Node::NONE; nodes],
            child: vec![Node::NONE; nodes],
            next: vec![Node::NONE; nodes],
            previous: vec![Node::NONE; nodes],
            len: vec![0; nodes],
            token: vec![[TokenId::NONE; PAGE_TOKENS]; nodes],
            page: vec![PageId::NONE; nodes],
            namespace: vec![0; nodes],
            hash: vec![0; nodes],
            used: vec![0; nodes],
            checkpoint: vec![CheckpointId::NONE; nodes],
            checkpoint_used: vec![0; nodes],
            top: Node::NONE,
            free: (0..nodes as u32).rev().map(Node).collect(),
            free_checkpoint: (0..checkpoints as u32).rev().map(CheckpointId).collect(),
            saved: Vec::with_capacity(checkpoints),
            gone: VecDeque::with_capacity(gone),
            gone_set: HashSet::with_capacity(gone),
            leaves: Vec::with_capacity(nodes),
            clock: 0,
            evicted: (0, 0),
            asked: 0,
            changes: 0,
        }
    }

    /// Every node holds a page.
    fn nodes(limits: &Limits, stateful: bool) -> usize {
        let useful = limits.prefix_cache && (!stateful || limits.checkpoints > 0);
        if useful { limits.pages } else { 0 }
    }

    /// Bytes of [`Self::new`], and of what is remembered of evicted nodes.
    pub fn bytes_for(limits: &Limits, stateful: bool) -> usize {
        let links = 5 * size_of::<Node>();
        let payload = size_of::<u8>() + size_of::<[TokenId; PAGE_TOKENS]>() + size_of::<PageId>();
        let stamps = 4 * size_of::<u64>() + size_of::<CheckpointId>();
        let nodes = Self::nodes(limits, stateful);
        let saved = size_of::<Node>() + size_of::<CheckpointId>();
        // A hash in the queue, and one in a table that is half full, with its mark.
        let gone = if nodes > 0 { GONE_MAX * (3 * size_of::<u64>() + 2) } else { 0 };
        let leaf = size_of::<Reverse<(u64, Node)>>();
        nodes.saturating_mul(links + payload + stamps + leaf) + limits.checkpoints * saved + gone
    }

    /// Whether anything is ever kept.
    pub fn is_on(&self) -> bool {
        !self.len.is_empty()
    }

    /// Whether a prefix can be used at checkpoints only.
    pub fn is_stateful(&self) -> bool {
        self.stateful
    }

    /// Checkpoints that are held.
    pub fn checkpoints(&self) -> usize {
        self.saved.len()
    }

    /// How often a checkpoint came or went. While that and [`Pages::changes`] are the same, so is what is known.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Nodes.
    pub fn len(&self) -> usize {
        self.len.len() - self.free.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn children(&self, of: Node, namespace: u64) -> impl Iterator<Item = Node> {
        let first = if of == Node::NONE { self.top } else { self.child[of.index()] };
        let all = std::iter::successors(first.some(), |node| self.next[node.index()].some());
        all.filter(move |node| of != Node::NONE || self.namespace[node.index()] == namespace)
    }

    fn tokens(&self, node: Node) -> &[TokenId] {
        &self.token[node.index()][..usize::from(self.len[node.index()])]
    }

    /// The child that holds exactly `tokens`.
    fn find(&self, parent: Node, namespace: u64, tokens: &[TokenId]) -> Option<Node> {
        self.children(parent, namespace).find(|node| self.tokens(*node) == tokens)
    }

    fn touch(&mut self, node: Node) {
        self.used[node.index()] = self.clock;
    }

    /// What is known of a prompt. Its last token is always computed.
    ///
    /// # Panics
    /// If the prompt is empty.
    pub fn look_up(&mut self, namespace: u64, prompt: &[TokenId]) -> Hit {
        let most = prompt.len() - 1;
        self.clock += 1;
        self.asked += 1;
        let mut path: Vec<Node> = Vec::new();
        // Nodes on the path to the checkpoint that reaches farthest, and where it stands.
        let mut best: Option<(usize, Node, usize)> = None;
        let (mut at, mut parent, mut matched) = (0, Node::NONE, 0);
        let mut partial = None;
        loop {
            let rest = &prompt[at..];
            let mut deeper = None;
            let mut longest = 0;
            for node in self.children(parent, namespace) {
                let tokens = self.tokens(node);
                let same = tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
                if same > longest {
                    longest = same;
                    partial = Some(node);
                }
                let end = at + same;
                let usable = same == tokens.len() && !self.checkpoint[node.index()].is_none() && end <= most;
                if usable && best.is_none_or(|(_, _, len)| end > len) {
                    best = Some((path.len(), node, end));
                }
                if same == PAGE_TOKENS {
                    deeper = Some(node);
                }
            }
            matched = matched.max(at + longest);
            let Some(node) = deeper else { break };
            path.push(node);
            partial = None;
            (parent, at) = (node, at + PAGE_TOKENS);
        }
        let (nodes, checkpoint, len) = match (self.stateful, best) {
            (true, None) => (Vec::new(), None, 0),
            (true, Some((depth, node, len))) => {
                self.checkpoint_used[node.index()] = self.clock;
                let nodes = path[..depth].iter().copied().chain([node]).collect();
                (nodes, Some(self.checkpoint[node.index()]), len)
            }
            (false, _) => {
                let len = matched.min(most);
                let nodes: Vec<Node> = path.iter().copied().chain(partial).take(len.div_ceil(PAGE_TOKENS)).collect();
                (nodes, None, len)
            }
        };
        for &node in &nodes {
            self.touch(node);
        }
        let pages = nodes.iter().map(|node| self.page[node.index()]).collect();
        let miss = self.why(namespace, prompt, parent, at, matched, len);
        Hit { len: len as u32, pages, checkpoint, matched: matched as u32, miss }
    }

    /// Why `len` of `prompt` is not more. Behind `parent`, at token `at`, no page matches as a whole.
    fn why(
        &self,
        namespace: u64,
        prompt: &[TokenId],
        parent: Node,
        at: usize,
        matched: usize,
        len: usize,
    ) -> Option<Miss> {
        if len + 1 == prompt.len() {
            return None;
        }
        let before = parent.some().map_or(namespace, |parent| self.hash[parent.index()]);
        let known = |hash: u64| self.gone_set.contains(&hash);
        let went = prompt[at..].first_chunk().is_some_and(|page: &[TokenId; PAGE_TOKENS]| known(chain(before, page)));
        let elsewhere = || {
            let all = std::iter::successors(self.top.some(), |node| self.next[node.index()].some());
            let mut others = all.filter(|node| self.namespace[node.index()] != namespace);
            others.any(|node| prompt.starts_with(self.tokens(node)))
        };
        let differs = |node: Node| self.tokens(node).iter().zip(&prompt[at..]).any(|(a, b)| a != b);
        Some(match () {
            () if matched == 0 && elsewhere() => Miss::Namespace,
            () if went => Miss::Evicted,
            () if matched < PAGE_TOKENS && len == 0 => Miss::Cold,
            () if len < matched => Miss::NoCheckpoint,
            () if self.children(parent, namespace).any(differs) => Miss::Diverged,
            () => Miss::End,
        })
    }

    /// Keeps the first `tokens.len()` positions of a row, and what the row's state is there, where that is needed. The
    /// row shares the pages from now on. Returns how many of the tokens were new.
    ///
    /// `own_tail`: the row writes no more, so its last page may be kept as it is; else the tree takes a copy.
    #[expect(clippy::too_many_arguments, reason = "the row, the tree's namespace, and what both hold")]
    pub fn keep(
        &mut self,
        namespace: u64,
        tokens: &[TokenId],
        slot: Slot,
        state: StateSlot,
        own_tail: bool,
        pages: &mut Pages,
        ops: &mut Vec<SlotOp>,
    ) -> u32 {
        if !self.is_on() || tokens.is_empty() {
            return 0;
        }
        self.clock += 1;
        let (full, tail) = tokens.as_chunks::<PAGE_TOKENS>();
        let (mut parent, mut new) = (Node::NONE, 0);
        for (block, page_tokens) in full.iter().enumerate() {
            let node = match self.find(parent, namespace, page_tokens) {
                Some(node) => {
                    pages.share_block(slot, block, self.page[node.index()]);
                    node
                }
                None => {
                    self.drop_shorter(parent, namespace, page_tokens, pages);
                    let page = pages.table(slot)[block];
                    pages.hold(page);
                    new += PAGE_TOKENS;
                    self.insert(parent, namespace, page_tokens, page)
                }
            };
            self.touch(node);
            parent = node;
        }
        if !tail.is_empty() && (self.stateful || own_tail) {
            parent = match self.find(parent, namespace, tail) {
                Some(node) => node,
                None => {
                    let from = pages.table(slot)[full.len()];
                    let page = if own_tail && !pages.is_held(from) {
                        pages.hold(from);
                        Some(from)
                    } else {
                        self.make_room(1, pages, ops);
                        let page = pages.alloc_held();
                        ops.extend(page.map(|to| SlotOp::CopyPage { from, to }));
                        page
                    };
                    let Some(page) = page else { return new as u32 };
                    new += tail.len();
                    self.insert(parent, namespace, tail, page)
                }
            };
            self.touch(parent);
        }
        if self.stateful && parent != Node::NONE {
            self.save(parent, state, pages, ops);
        }
        new as u32
    }

    fn save(&mut self, node: Node, state: StateSlot, pages: &mut Pages, ops: &mut Vec<SlotOp>) {
        self.checkpoint_used[node.index()] = self.clock;
        if !self.checkpoint[node.index()].is_none() {
            return;
        }
        if self.saved.len() == self.checkpoints_max {
            let oldest = self.saved.iter().copied().min_by_key(|node| (self.checkpoint_used[node.index()], *node));
            let oldest = oldest.expect("a stateful tree has room for a checkpoint");
            self.evicted.1 += 1;
            self.drop_checkpoint(oldest, ops);
            // Part of a page without a state is of no use here.
            if usize::from(self.len[oldest.index()]) < PAGE_TOKENS {
                self.remove(oldest, pages, ops);
            }
        }
        let checkpoint = self.free_checkpoint.pop().expect("one was free, or has just been dropped");
        self.checkpoint[node.index()] = checkpoint;
        self.changes += 1;
        self.saved.push(node);
        ops.push(SlotOp::Save { state, checkpoint });
    }

    fn drop_checkpoint(&mut self, node: Node, ops: &mut Vec<SlotOp>) {
        let checkpoint = std::mem::replace(&mut self.checkpoint[node.index()], CheckpointId::NONE);
        if !checkpoint.is_none() {
            self.changes += 1;
            self.saved.retain(|saved| *saved != node);
            self.free_checkpoint.push(checkpoint);
            ops.push(SlotOp::Drop { checkpoint });
        }
    }

    /// Parts of a page that says more now, and that nobody else needs.
    fn drop_shorter(&mut self, parent: Node, namespace: u64, page: &[TokenId], pages: &mut Pages) {
        let shorter: Vec<Node> = self
            .children(parent, namespace)
            .filter(|node| page.starts_with(self.tokens(*node)) && self.checkpoint[node.index()].is_none())
            .collect();
        for node in shorter {
            self.remove(node, pages, &mut Vec::new());
        }
    }

    fn insert(&mut self, parent: Node, namespace: u64, tokens: &[TokenId], page: PageId) -> Node {
        let node = self.free.pop().expect("as many nodes as pages");
        let n = node.index();
        self.parent[n] = parent;
        self.len[n] = tokens.len() as u8;
        self.token[n][..tokens.len()].copy_from_slice(tokens);
        self.page[n] = page;
        self.namespace[n] = namespace;
        self.hash[n] = chain(parent.some().map_or(namespace, |p| self.hash[p.index()]), tokens);
        self.child[n] = Node::NONE;
        let first = if parent == Node::NONE { &mut self.top } else { &mut self.child[parent.index()] };
        self.previous[n] = Node::NONE;
        self.next[n] = std::mem::replace(first, node);
        if let Some(next) = self.next[n].some() {
            self.previous[next.index()] = node;
        }
        node
    }

    /// Takes a leaf out. Its page is released, its checkpoint dropped.
    fn remove(&mut self, node: Node, pages: &mut Pages, ops: &mut Vec<SlotOp>) {
        let n = node.index();
        assert_eq!(self.child[n], Node::NONE, "a node goes after its children");
        self.drop_checkpoint(node, ops);
        let (previous, next, parent) = (self.previous[n], self.next[n], self.parent[n]);
        match (previous.some(), parent.some()) {
            (Some(previous), _) => self.next[previous.index()] = next,
            (None, Some(parent)) => self.child[parent.index()] = next,
            (None, None) => self.top = next,
        }
        if let Some(next) = next.some() {
            self.previous[next.index()] = previous;
        }
        self.len[n] = 0;
        pages.let_go(std::mem::replace(&mut self.page[n], PageId::NONE));
        self.free.push(node);
    }

    /// Evicts until `wanted` pages are free, or nothing is left that the tree alone holds.
    pub fn make_room(&mut self, wanted: usize, pages: &mut Pages, ops: &mut Vec<SlotOp>) {
        if pages.free_len() >= wanted || pages.idle_len() == 0 {
            return;
        }
        let leaf = |tree: &Self, pages: &Pages, node: Node| {
            tree.child[node.index()] == Node::NONE && pages.ref_count(tree.page[node.index()]) == 1
        };
        let all = (0..self.len.len() as u32).map(Node).filter(|node| self.len[node.index()] > 0);
        let mut leaves = std::mem::take(&mut self.leaves);
        leaves.extend(all.filter(|node| leaf(self, pages, *node)).map(|node| Reverse((self.used[node.index()], node))));
        let mut oldest = BinaryHeap::from(leaves);
        while pages.free_len() < wanted
            && let Some(Reverse((_, node))) = oldest.pop()
        {
            self.remember(node);
            self.evicted.0 += 1;
            self.evicted.1 += u64::from(!self.checkpoint[node.index()].is_none());
            let parent = self.parent[node.index()];
            self.remove(node, pages, ops);
            if let Some(parent) = parent.some().filter(|parent| leaf(self, pages, *parent)) {
                oldest.push(Reverse((self.used[parent.index()], parent)));
            }
        }
        self.leaves = oldest.into_vec();
        self.leaves.clear();
    }

    fn remember(&mut self, node: Node) {
        let hash = self.hash[node.index()];
        if usize::from(self.len[node.index()]) < PAGE_TOKENS || self.gone_set.contains(&hash) {
            return;
        }
        if self.gone.len() == GONE_MAX
            && let Some(oldest) = self.gone.pop_front()
        {
            self.gone_set.remove(&oldest);
        }
        self.gone.push_back(hash);
        self.gone_set.insert(hash);
    }

    /// Forgets everything: the Executor has lost it.
    pub fn forget_all(&mut self, pages: &mut Pages, ops: &mut Vec<SlotOp>) {
        while let Some(first) = self.top.some() {
            let mut leaf = first;
            while let Some(child) = self.child[leaf.index()].some() {
                leaf = child;
            }
            self.remember(leaf);
            self.remove(leaf, pages, ops);
        }
    }

    /// Asserts the invariants of the module's header.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self, pages: &Pages) {
        let (mut reached, mut open) = (0, vec![self.top]);
        let mut saved = 0;
        while let Some(first) = open.pop() {
            let mut previous = Node::NONE;
            for node in std::iter::successors(first.some(), |node| self.next[node.index()].some()) {
                let n = node.index();
                reached += 1;
                assert_eq!(self.previous[n], previous);
                previous = node;
                assert!((1..=PAGE_TOKENS).contains(&usize::from(self.len[n])), "a node of {} tokens", self.len[n]);
                assert!(pages.is_held(self.page[n]), "a node without its page");
                saved += usize::from(!self.checkpoint[n].is_none());
                if let Some(child) = self.child[n].some() {
                    assert_eq!(usize::from(self.len[n]), PAGE_TOKENS, "only full nodes have children");
                    assert_eq!(self.parent[child.index()], node);
                    open.push(child);
                }
            }
        }
        assert_eq!(reached, self.len(), "every node is reached once");
        assert_eq!(reached, pages.held_len(), "every page that is held has a node");
        assert_eq!(saved, self.saved.len(), "checkpoints that are listed");
        assert_eq!(saved + self.free_checkpoint.len(), self.checkpoints_max, "checkpoints are saved or free");
    }
}

/// Hash of a sequence that goes on with `tokens` behind one of hash `before`. It only tells why something is missing.
fn chain(before: u64, tokens: &[TokenId]) -> u64 {
    let step = |hash: u64, token: &TokenId| {
        let x = (hash ^ u64::from(token.0)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^ (x >> 27)
    };
    tokens.iter().fold(before, step)
}
