#pragma once
/// A pickle as a graph of plain values. Nothing is imported, called or resolved: a REDUCE is kept as a node
/// that says what would have been called with what.

#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "glu_ckpt/error.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// A node of a PickleGraph. Equal refs are one Python object: sharing and cycles are kept.
using PickleRef = u32;

enum class PickleKind : std::uint8_t {
  None,
  Bool,
  /// Fits 64 bits.
  Int,
  /// text() is its two's complement, little-endian.
  BigInt,
  Float,
  /// text() is UTF-8.
  String,
  Bytes,
  ByteArray,
  /// items() in order.
  List,
  Tuple,
  Set,
  FrozenSet,
  /// items() alternates keys and values, in the order they were set.
  Dict,
  /// A class or function by name: module() and name().
  Global,
  /// REDUCE: function() with the tuple arguments().
  Call,
  /// NEWOBJ: the class function() with the tuple arguments().
  New,
  /// BINPERSID: arguments() is the persistent id, for torch a tuple ('storage', type, key, location, numel).
  Persistent,
};

/// Returns true for a Python object that a callable would make.
constexpr bool is_object(PickleKind kind) { return kind == PickleKind::Call || kind == PickleKind::New; }

class PickleGraph {
 public:
  /// Nodes read from `text` point into it, so the graph keeps it.
  explicit PickleGraph(std::string text = {});
  PickleGraph(const PickleGraph&) = delete;
  PickleGraph& operator=(const PickleGraph&) = delete;

  std::string_view source() const;
  std::size_t size() const;
  /// Bytes of memory that the nodes and their items take, without the text.
  i64 bytes() const;
  /// The position in source() of the opcode that made the node. None for nodes that were not read, for names, and for
  /// None, Bools, small integers and (), which are one node each.
  std::optional<i64> position(PickleRef node) const;
  /// Nodes added from now on are made by the opcode there; kNotRead: by none.
  void set_position(u32 position) { position_ = position; }
  static constexpr u32 kNotRead = ~u32{0};

  PickleKind kind(PickleRef node) const;
  bool boolean(PickleRef node) const;
  i64 integer(PickleRef node) const;
  double number(PickleRef node) const;
  std::string_view text(PickleRef node) const;
  std::string_view module(PickleRef node) const;
  std::string_view name(PickleRef node) const;
  PickleRef function(PickleRef node) const;
  PickleRef arguments(PickleRef node) const;
  /// The items of a List, Tuple, Set, FrozenSet or Dict; for a Call or New, those that APPENDS or SETITEMS put
  /// into the object (an OrderedDict's pairs, alternating).
  std::vector<PickleRef> items(PickleRef node) const;
  /// Returns true where items() is not empty; copies none.
  bool has_items(PickleRef node) const;
  /// Returns true where the items of a Call or New are keys and values (SETITEMS), not single ones (APPENDS).
  bool items_are_pairs(PickleRef node) const;
  /// The states that BUILD gave a Call or New (or a Dict), in order; nearly always none or one.
  std::vector<PickleRef> states(PickleRef node) const;

  PickleRef add_none();
  PickleRef add_bool(bool value);
  PickleRef add_int(i64 value);
  PickleRef add_float(double value);
  /// `kind` is BigInt, String, Bytes or ByteArray. The view must point into source() or live as long.
  PickleRef add_view(PickleKind kind, std::string_view text);
  /// Adds a text that the graph keeps.
  PickleRef add_text(PickleKind kind, std::string text);
  PickleRef add_string(std::string text) { return add_text(PickleKind::String, std::move(text)); }
  /// `kind` is List, Tuple, Set, FrozenSet or Dict (items alternate keys and values).
  PickleRef add_container(PickleKind kind, std::span<const PickleRef> items);
  PickleRef add_tuple(std::initializer_list<PickleRef> items);
  PickleRef add_global(std::string_view module, std::string_view name);
  PickleRef add_call(PickleRef function, PickleRef arguments);
  PickleRef add_new(PickleRef type, PickleRef arguments);
  PickleRef add_persistent(PickleRef id);
  /// Appends to the items of a List, Set, Dict, Call or New; those of the last three alternate keys and values.
  void extend(PickleRef node, std::span<const PickleRef> items);
  /// Appends single items to a Call or New, as of a deque. One object takes either pairs or single items.
  void extend_single(PickleRef node, std::span<const PickleRef> items);
  void add_state(PickleRef node, PickleRef state);
  /// Copies a value of another graph, sharing and cycles included, into this one, which keeps nothing of the
  /// other's text. Not recursive: any depth will do.
  /// `check` gets the bytes of memory that are held, again and again, and may throw.
  using HeldCheck = std::function<void(i64 held_bytes)>;
  PickleRef import(const PickleGraph& other, PickleRef node, const HeldCheck& check = {});

 private:
  static constexpr u32 kNone = ~u32{0};

  /// The meaning of Node::c in a Call, New or Dict.
  enum class Extras : std::uint8_t { Nothing, OneState, Index };

  /// 16 bytes, so that a .metadata of hundreds of MB stays within a few times its size.
  ///   Int, Float                       b and c: the value
  ///   BigInt, String, Bytes, ByteArray a: length; b and c: the address of the text
  ///   Tuple, FrozenSet                 a: where the items begin in pool_; b: how many
  ///   List, Set, Dict                  a, b: the chain of items; c: a Dict's extras
  ///   Global                           a: index into names_
  ///   Call, New                        a: function; b: arguments; c: extras
  ///   Persistent                       b: arguments
  struct Node {
    PickleKind kind = PickleKind::None;
    Extras extras = Extras::Nothing;
    /// The value of a Bool; of a Call or New, that its items are single.
    bool flag = false;
    u32 a = 0;
    u32 b = 0;
    u32 c = 0;
  };

  /// Segments of pool_: count, index of the next segment or kNone, items.
  struct Chain {
    u32 head = kNone;
    u32 tail = kNone;
  };

  struct Extra {
    Chain items;
    Chain states;
  };

  struct Name {
    std::string_view module;
    std::string_view name;
  };

  const Node& at(PickleRef node) const;
  Node& at(PickleRef node);
  PickleRef add_node(Node node);
  PickleRef add_wide(PickleKind kind, u64 value);
  PickleRef add_object(PickleKind kind, PickleRef function, PickleRef arguments);
  Extra& extra(Node& node);
  void extend_object(PickleRef node, std::span<const PickleRef> items, bool single);
  void append(Chain& chain, std::span<const PickleRef> items);
  void append_to_pool(std::span<const PickleRef> items);
  void set_items(Node& node, std::span<const PickleRef> items);
  std::vector<PickleRef> read_chain(Chain chain) const;

  class Import;

  std::string source_;
  /// Deques: they grow without a copy that would double the peak.
  std::deque<Node> nodes_;
  /// The position of each node; shorter than nodes_ where the last ones were not read.
  std::deque<u32> positions_;
  u32 position_ = kNotRead;
  std::deque<u32> pool_;
  std::deque<Extra> extras_;
  std::deque<std::string> texts_;
  std::vector<Name> names_;
  std::map<std::pair<std::string_view, std::string_view>, PickleRef> globals_;
};

/// The names that a pickle may hold: those of tensors and state dicts, or those of a .metadata file. `Any` takes every
/// name and every call: nothing is run either way, so a trainer's state is read around what is foreign in it.
enum class PickleNames { Torch, DcpMetadata, Any };

/// The use that a name may be put to.
enum class NameUse {
  /// The name is not in the list.
  Refused,
  /// May stand as a value (a dtype, a storage type, an enum's class), not be called.
  Value,
  /// May be called by REDUCE or NEWOBJ as well.
  Callable,
};
NameUse name_use(PickleNames names, std::string_view module, std::string_view name);

/// Reads the pickle of protocol 2 to 5 at the start of graph.source().substr(begin), with a closed list of opcodes and
/// names, and returns its root. Executes nothing. `*end` is set to the position after STOP. `part` is what source() was
/// read from. Nodes get their position(). Throws the Pickle* errors.
PickleRef read_pickle(PickleGraph& graph, PickleNames names, const InputPart& part, std::size_t begin = 0,
                      std::size_t* end = nullptr);

/// Writes a pickle of protocol 2, which torch.load(weights_only=True) reads. Shared nodes are written once and fetched
/// from the memo. Deterministic. Throws PickleDepth.
std::string write_pickle(const PickleGraph& graph, PickleRef root);

}  // namespace glu_ckpt
