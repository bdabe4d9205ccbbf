#include "format/pickle_graph.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <unordered_map>

#include "core/fail.hpp"

namespace glu_ckpt {

namespace {

/// Values without identity have one node each, made with the graph: None, the two Bools, the empty tuple, and
/// the small integers that pickles are full of.
constexpr PickleRef kNoneNode = 0;
constexpr PickleRef kFalseNode = 1;
constexpr PickleRef kTrueNode = 2;
constexpr PickleRef kEmptyTupleNode = 3;
constexpr PickleRef kFirstIntNode = 4;
constexpr i64 kSmallInts = 256;

/// Checks what callers must know before they ask. The file may be hostile, so that no build takes their word for it.
void require(bool holds) {
  if (!holds) throw std::logic_error("PickleGraph: asked for what the node is not");
}

constexpr u32 low(u64 value) { return static_cast<u32>(value); }
constexpr u32 high(u64 value) { return static_cast<u32>(value >> 32); }

bool is_text(PickleKind kind) {
  return kind == PickleKind::BigInt || kind == PickleKind::String || kind == PickleKind::Bytes ||
         kind == PickleKind::ByteArray;
}

bool is_frozen(PickleKind kind) { return kind == PickleKind::Tuple || kind == PickleKind::FrozenSet; }

bool is_chained(PickleKind kind) {
  return kind == PickleKind::List || kind == PickleKind::Set || kind == PickleKind::Dict;
}

}  // namespace

PickleGraph::PickleGraph(std::string text) : source_(std::move(text)) {
  static_assert(sizeof(Node) == 16);
  add_node({.kind = PickleKind::None});
  add_node({.kind = PickleKind::Bool, .flag = false});
  add_node({.kind = PickleKind::Bool, .flag = true});
  add_node({.kind = PickleKind::Tuple});
  for (i64 value = 0; value < kSmallInts; ++value) add_wide(PickleKind::Int, static_cast<u64>(value));
}

std::string_view PickleGraph::source() const { return source_; }
std::size_t PickleGraph::size() const { return nodes_.size(); }

i64 PickleGraph::bytes() const {
  return static_cast<i64>(nodes_.size() * (sizeof(Node) + sizeof(u32)) + pool_.size() * sizeof(PickleRef) +
                          extras_.size() * sizeof(Extra) + texts_.size() * sizeof(std::string));
}

std::optional<i64> PickleGraph::position(PickleRef node) const {
  if (node >= positions_.size() || positions_[node] == kNotRead || kind(node) == PickleKind::Global)
    return std::nullopt;
  return positions_[node];
}

const PickleGraph::Node& PickleGraph::at(PickleRef node) const {
  require(node < nodes_.size());
  return nodes_[node];
}

PickleGraph::Node& PickleGraph::at(PickleRef node) {
  require(node < nodes_.size());
  return nodes_[node];
}

PickleKind PickleGraph::kind(PickleRef node) const { return at(node).kind; }

bool PickleGraph::boolean(PickleRef node) const {
  require(kind(node) == PickleKind::Bool);
  return at(node).flag;
}

i64 PickleGraph::integer(PickleRef node) const {
  require(kind(node) == PickleKind::Int);
  return static_cast<i64>(u64{at(node).c} << 32 | at(node).b);
}

double PickleGraph::number(PickleRef node) const {
  require(kind(node) == PickleKind::Float);
  return std::bit_cast<double>(u64{at(node).c} << 32 | at(node).b);
}

std::string_view PickleGraph::text(PickleRef node) const {
  const Node& n = at(node);
  require(is_text(n.kind));
  return {std::bit_cast<const char*>(u64{n.c} << 32 | n.b), n.a};
}

std::string_view PickleGraph::module(PickleRef node) const {
  require(kind(node) == PickleKind::Global);
  return names_[at(node).a].module;
}

std::string_view PickleGraph::name(PickleRef node) const {
  require(kind(node) == PickleKind::Global);
  return names_[at(node).a].name;
}

PickleRef PickleGraph::function(PickleRef node) const {
  require(is_object(kind(node)));
  return at(node).a;
}

PickleRef PickleGraph::arguments(PickleRef node) const {
  require(is_object(kind(node)) || kind(node) == PickleKind::Persistent);
  return at(node).b;
}

std::vector<PickleRef> PickleGraph::items(PickleRef node) const {
  const Node& n = at(node);
  if (is_chained(n.kind)) return read_chain({n.a, n.b});
  if (is_frozen(n.kind)) {
    const auto begin = pool_.begin() + static_cast<std::ptrdiff_t>(n.a);
    return {begin, begin + static_cast<std::ptrdiff_t>(n.b)};
  }
  require(is_object(n.kind));
  if (n.extras != Extras::Index) return {};
  return read_chain(extras_[n.c].items);
}

bool PickleGraph::has_items(PickleRef node) const {
  const Node& n = at(node);
  if (is_chained(n.kind)) return n.a != kNone;
  if (is_frozen(n.kind)) return n.b != 0;
  require(is_object(n.kind));
  return n.extras == Extras::Index && extras_[n.c].items.head != kNone;
}

bool PickleGraph::items_are_pairs(PickleRef node) const {
  require(is_object(kind(node)));
  return !at(node).flag;
}

std::vector<PickleRef> PickleGraph::states(PickleRef node) const {
  const Node& n = at(node);
  require(is_object(n.kind) || n.kind == PickleKind::Dict);
  if (n.extras == Extras::Nothing) return {};
  if (n.extras == Extras::OneState) return {n.c};
  return read_chain(extras_[n.c].states);
}

PickleRef PickleGraph::add_node(Node node) {
  // Leaves room for kNone, which stands for no node.
  if (nodes_.size() >= kNone) fail(ErrorCode::PickleLimit, {}, "a pickle of more than {} values", kNone);
  nodes_.push_back(node);
  if (position_ != kNotRead) {
    positions_.resize(nodes_.size() - 1, kNotRead);
    positions_.push_back(position_);
  }
  return static_cast<PickleRef>(nodes_.size() - 1);
}

PickleRef PickleGraph::add_wide(PickleKind kind, u64 value) {
  return add_node({.kind = kind, .b = low(value), .c = high(value)});
}

PickleRef PickleGraph::add_none() { return kNoneNode; }
PickleRef PickleGraph::add_bool(bool value) { return value ? kTrueNode : kFalseNode; }

PickleRef PickleGraph::add_int(i64 value) {
  if (value >= 0 && value < kSmallInts) return kFirstIntNode + static_cast<PickleRef>(value);
  return add_wide(PickleKind::Int, static_cast<u64>(value));
}

PickleRef PickleGraph::add_float(double value) { return add_wide(PickleKind::Float, std::bit_cast<u64>(value)); }

PickleRef PickleGraph::add_view(PickleKind kind, std::string_view text) {
  require(is_text(kind));
  if (text.size() > std::numeric_limits<u32>::max())
    fail(ErrorCode::PickleLimit, {}, "a text of {} bytes in a pickle: the limit is 4 GiB", text.size());
  static_assert(sizeof(const char*) == sizeof(u64));
  const auto address = std::bit_cast<u64>(text.data());
  return add_node({.kind = kind, .a = static_cast<u32>(text.size()), .b = low(address), .c = high(address)});
}

PickleRef PickleGraph::add_text(PickleKind kind, std::string text) {
  texts_.push_back(std::move(text));
  return add_view(kind, texts_.back());
}

PickleRef PickleGraph::add_container(PickleKind kind, std::span<const PickleRef> items) {
  require(is_frozen(kind) || is_chained(kind));
  if (kind == PickleKind::Tuple && items.empty()) return kEmptyTupleNode;
  const PickleRef node = add_node({.kind = kind, .a = kNone, .b = kNone});
  set_items(nodes_.back(), items);
  return node;
}

void PickleGraph::set_items(Node& node, std::span<const PickleRef> items) {
  if (is_frozen(node.kind)) {
    node.a = static_cast<u32>(pool_.size());
    node.b = static_cast<u32>(items.size());
    append_to_pool(items);
    return;
  }
  Chain chain{node.a, node.b};
  append(chain, items);
  node.a = chain.head;
  node.b = chain.tail;
}

PickleRef PickleGraph::add_tuple(std::initializer_list<PickleRef> items) {
  return add_container(PickleKind::Tuple, {items.begin(), items.size()});
}

PickleRef PickleGraph::add_global(std::string_view module, std::string_view name) {
  const auto found = globals_.find({module, name});
  if (found != globals_.end()) return found->second;
  const std::string_view kept_module = texts_.emplace_back(module);
  const std::string_view kept_name = texts_.emplace_back(name);
  names_.push_back({kept_module, kept_name});
  const PickleRef node = add_node({.kind = PickleKind::Global, .a = static_cast<u32>(names_.size() - 1)});
  globals_.emplace(std::pair(kept_module, kept_name), node);
  return node;
}

PickleRef PickleGraph::add_object(PickleKind kind, PickleRef function, PickleRef arguments) {
  return add_node({.kind = kind, .a = function, .b = arguments});
}

PickleRef PickleGraph::add_call(PickleRef function, PickleRef arguments) {
  return add_object(PickleKind::Call, function, arguments);
}

PickleRef PickleGraph::add_new(PickleRef type, PickleRef arguments) {
  return add_object(PickleKind::New, type, arguments);
}

PickleRef PickleGraph::add_persistent(PickleRef id) { return add_object(PickleKind::Persistent, 0, id); }

void PickleGraph::extend(PickleRef node, std::span<const PickleRef> items) {
  if (is_object(kind(node))) return extend_object(node, items, /*single=*/false);
  require(is_chained(kind(node)));
  set_items(at(node), items);
}

void PickleGraph::extend_single(PickleRef node, std::span<const PickleRef> items) {
  require(is_object(kind(node)));
  extend_object(node, items, /*single=*/true);
}

void PickleGraph::extend_object(PickleRef node, std::span<const PickleRef> items, bool single) {
  if (items.empty()) return;
  Node& n = at(node);
  Chain& chain = extra(n).items;
  require(chain.head == kNone || n.flag == single);
  n.flag = single;
  append(chain, items);
}

void PickleGraph::add_state(PickleRef node, PickleRef state) {
  Node& n = at(node);
  require(is_object(n.kind) || n.kind == PickleKind::Dict);
  if (n.extras == Extras::Nothing) {
    n.extras = Extras::OneState;
    n.c = state;
  } else {
    append(extra(n).states, std::span(&state, 1));
  }
}

PickleGraph::Extra& PickleGraph::extra(Node& node) {
  if (node.extras == Extras::Index) return extras_[node.c];
  Extra& added = extras_.emplace_back();
  if (node.extras == Extras::OneState) append(added.states, std::span(&node.c, 1));
  node.extras = Extras::Index;
  node.c = static_cast<u32>(extras_.size() - 1);
  return added;
}

void PickleGraph::append(Chain& chain, std::span<const PickleRef> items) {
  if (items.empty()) return;
  // Items of a list that grows alone lie in one segment.
  if (chain.tail != kNone && u64{chain.tail} + 2 + pool_[chain.tail] == pool_.size()) {
    append_to_pool(items);
    pool_[chain.tail] += static_cast<u32>(items.size());
    return;
  }
  const u32 header[] = {static_cast<u32>(items.size()), kNone};
  const auto segment = static_cast<u32>(pool_.size());
  append_to_pool(header);
  append_to_pool(items);
  if (chain.tail == kNone)
    chain.head = segment;
  else
    pool_[chain.tail + 1] = segment;
  chain.tail = segment;
}

void PickleGraph::append_to_pool(std::span<const PickleRef> items) {
  if (items.size() > kNone - pool_.size())
    fail(ErrorCode::PickleLimit, {}, "a pickle with containers of more than {} items", kNone);
  pool_.insert(pool_.end(), items.begin(), items.end());
}

std::vector<PickleRef> PickleGraph::read_chain(Chain chain) const {
  std::vector<PickleRef> items;
  for (u32 segment = chain.head; segment != kNone; segment = pool_[segment + 1]) {
    const auto begin = pool_.begin() + static_cast<std::ptrdiff_t>(segment) + 2;
    items.insert(items.end(), begin, begin + static_cast<std::ptrdiff_t>(pool_[segment]));
  }
  return items;
}

/// Copies breadth first: a node's copy exists before the nodes that it refers to are visited, so cycles close.
class PickleGraph::Import {
 public:
  Import(PickleGraph& to, const PickleGraph& from, const HeldCheck& check) : to_(to), from_(from), check_(check) {}

  PickleRef run(PickleRef root) {
    const PickleRef copy = copy_of(root);
    // There are more of them after each.
    for (std::size_t done = 0; done < pending_.size();) fill(pending_[done++]);
    return copy;
  }

 private:
  PickleRef copy_of(PickleRef node) {
    const auto found = copies_.find(node);
    if (found != copies_.end()) return found->second;
    const PickleRef copy = add_copy(node);
    copies_.emplace(node, copy);
    constexpr i64 kBytesOfOne = 48;
    if (check_) check_(to_.bytes() + kBytesOfOne * std::ssize(copies_));
    return copy;
  }

  std::vector<PickleRef> copies_of(std::vector<PickleRef> nodes) {
    for (PickleRef& node : nodes) node = copy_of(node);
    return nodes;
  }

  /// The whole copy of a value without references, the shell of another.
  PickleRef add_copy(PickleRef node) {
    const PickleKind kind = from_.kind(node);
    if (is_text(kind)) return to_.add_text(kind, std::string(from_.text(node)));
    switch (kind) {
      case PickleKind::None: return to_.add_none();
      case PickleKind::Bool: return to_.add_bool(from_.boolean(node));
      case PickleKind::Int: return to_.add_int(from_.integer(node));
      case PickleKind::Float: return to_.add_float(from_.number(node));
      case PickleKind::Global: return to_.add_global(from_.module(node), from_.name(node));
      default: break;
    }
    if (node == kEmptyTupleNode) return kEmptyTupleNode;
    pending_.push_back(node);
    return to_.add_node({.kind = kind, .a = kNone, .b = kNone});
  }

  void fill(PickleRef node) {
    const PickleRef copy = copies_.at(node);
    const PickleKind kind = from_.kind(node);
    if (is_object(kind)) to_.at(copy).a = copy_of(from_.function(node));
    if (is_object(kind) || kind == PickleKind::Persistent) to_.at(copy).b = copy_of(from_.arguments(node));
    if (kind == PickleKind::Persistent) return;
    const std::vector<PickleRef> items = copies_of(from_.items(node));
    if (is_object(kind))
      to_.extend_object(copy, items, !from_.items_are_pairs(node));
    else
      to_.set_items(to_.at(copy), items);
    if (!is_object(kind) && kind != PickleKind::Dict) return;
    for (const PickleRef state : copies_of(from_.states(node))) to_.add_state(copy, state);
  }

  PickleGraph& to_;
  const PickleGraph& from_;
  const HeldCheck& check_;
  std::unordered_map<PickleRef, PickleRef> copies_;
  std::vector<PickleRef> pending_;
};

PickleRef PickleGraph::import(const PickleGraph& other, PickleRef node, const HeldCheck& check) {
  return Import(*this, other, check).run(node);
}

}  // namespace glu_ckpt
