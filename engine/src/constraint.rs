//! Constraints: which tokens a choice may be made of, beyond what its sampling says. A grammar, a budget, a protocol of
//! calls: the engine knows none of them. It asks one object per choice which tokens may come next, tells it what was
//! committed, and walks it along drafts and back.

use std::fmt::Debug;

use crate::ids::TokenId;

/// What a constraint allows at one position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowed {
    /// Every token.
    All,
    /// The tokens whose bits are set.
    Masked,
    /// No token: a dead end, or a constraint that cannot go on. The choice ends there with an error.
    Nothing,
}

/// What one choice may consist of. Its state is that of the tokens it has taken; a choice that is drafted and one that is
/// decoded token by token are asked the same questions and must be given the same answers.
pub trait Constraint: Debug + Send {
    /// Which tokens may come next. `words`: one bit a token, lowest bit first, all of them 0; they are left so unless
    /// the answer is [`Allowed::Masked`], which sets one at least.
    fn mask(&mut self, words: &mut [u32]) -> Allowed;

    /// Takes a token; where it may not come next, nothing is taken and the answer is `false`.
    fn advance(&mut self, token: TokenId) -> bool;

    /// Gives the last `n` tokens back: drafts, at most [`WINDOW_MAX`](crate::limits::WINDOW_MAX) of them.
    fn rollback(&mut self, n: usize);

    /// Whether nothing may follow: the choice ends with the token that was taken last, whatever else would end it.
    fn ended(&self) -> bool;

    /// A second constraint in the same state, which goes its own way.
    fn fork(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.fork()
    }
}
