#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include "core/fail.hpp"
#include "format/pickle_graph.hpp"

namespace glu_ckpt {

namespace {

/// Python's readers of a pickle do not recurse, but what follows them (copying, printing, comparing) does.
constexpr u32 kMaxWrittenDepth = 1000;
/// Python writes as many items at once, so that a reader's stack stays short.
constexpr std::size_t kBatchItems = 1000;

/// The globals that pickle.loads and torch's weights_only unpickler both take.
constexpr std::string_view kGlobalEncode = "c_codecs\nencode\n";
constexpr std::string_view kGlobalByteArray = "c__builtin__\nbytearray\n";
constexpr std::string_view kGlobalSet = "c__builtin__\nset\n";
constexpr std::string_view kGlobalFrozenSet = "c__builtin__\nfrozenset\n";
constexpr std::string_view kLatin1 = std::string_view("X\x06\0\0\0latin1", 11);

/// Values that have no identity, or none worth a place in the memo.
bool is_small(const PickleGraph& graph, PickleRef node) {
  switch (graph.kind(node)) {
    case PickleKind::None:
    case PickleKind::Bool:
    case PickleKind::Int:
    case PickleKind::Float: return true;
    case PickleKind::Tuple: return !graph.has_items(node);
    default: return false;
  }
}

/// Everything that a node refers to.
std::vector<PickleRef> children(const PickleGraph& graph, PickleRef node) {
  const PickleKind kind = graph.kind(node);
  std::vector<PickleRef> nodes;
  switch (kind) {
    case PickleKind::Persistent: return {graph.arguments(node)};
    case PickleKind::List:
    case PickleKind::Tuple:
    case PickleKind::Set:
    case PickleKind::FrozenSet: return graph.items(node);
    case PickleKind::Dict:
    case PickleKind::Call:
    case PickleKind::New: nodes = graph.items(node); break;
    default: return {};
  }
  const std::vector<PickleRef> states = graph.states(node);
  nodes.insert(nodes.end(), states.begin(), states.end());
  if (is_object(kind)) nodes.insert(nodes.end(), {graph.function(node), graph.arguments(node)});
  return nodes;
}

class Writer {
 public:
  explicit Writer(const PickleGraph& graph) : graph_(graph), places_(graph.size(), kUnseen) {}

  std::string run(PickleRef root) {
    find_shared(root);
    out_ = "\x80\x02";
    steps_.push_back({Step::Value, root, 0});
    while (!steps_.empty()) {
      const Step step = steps_.back();
      steps_.pop_back();
      take(step);
    }
    out_ += '.';
    return std::move(out_);
  }

 private:
  /// One thing left to do. Kept on a stack of its own, so no depth of values exhausts the program's.
  struct Step {
    enum What : unsigned char { Value, Opcode, Memo } what;
    /// The node of a Value or Memo, the opcode of an Opcode.
    u32 subject;
    u32 depth;
  };

  /// The values in places_ that say what is known of a node. Other values are the memo slot that holds it.
  enum Place : u32 { kUnseen = ~u32{0}, kOnce = kUnseen - 1, kShared = kUnseen - 2, kOpen = kUnseen - 3 };

  void find_shared(PickleRef root) {
    std::vector<PickleRef> pending{root};
    while (!pending.empty()) {
      const PickleRef node = pending.back();
      pending.pop_back();
      if (is_small(graph_, node)) continue;
      if (places_[node] != kUnseen) {
        places_[node] = kShared;
        continue;
      }
      places_[node] = kOnce;
      const std::vector<PickleRef> next = children(graph_, node);
      pending.insert(pending.end(), next.begin(), next.end());
    }
  }

  void take(const Step& step) {
    switch (step.what) {
      case Step::Value: write_value(step.subject, step.depth); break;
      case Step::Opcode: out_ += static_cast<char>(step.subject); break;
      case Step::Memo: memoize(step.subject); break;
    }
  }

  void write_value(PickleRef node, u32 depth) {
    if (is_small(graph_, node)) return write_small(node);
    const u32 place = places_[node];
    if (place < kOpen) return write_slot('h', 'j', place);
    // Python writes such a value twice and drops one copy; that can grow without bound.
    if (place == kOpen)
      fail(ErrorCode::PickleDepth, {}, "a tuple, set or object is among the values that it is made of; not written");
    if (depth >= kMaxWrittenDepth)
      fail(ErrorCode::PickleDepth, {}, "values nested more than {} deep cannot be written as a pickle",
           kMaxWrittenDepth);
    if (!write_leaf(node)) write_nested(node, depth);
  }

  // values without parts

  void write_small(PickleRef node) {
    switch (graph_.kind(node)) {
      case PickleKind::None: out_ += 'N'; break;
      case PickleKind::Bool: out_ += graph_.boolean(node) ? '\x88' : '\x89'; break;
      case PickleKind::Int: write_int(graph_.integer(node)); break;
      case PickleKind::Float: write_float(graph_.number(node)); break;
      default: out_ += ')';
    }
  }

  bool write_leaf(PickleRef node) {
    switch (graph_.kind(node)) {
      case PickleKind::BigInt: write_big_int(graph_.text(node)); break;
      case PickleKind::String: write_string(graph_.text(node)); break;
      case PickleKind::Bytes: write_bytes(graph_.text(node)); break;
      case PickleKind::ByteArray:
        write_once(kGlobalByteArray);
        write_bytes(graph_.text(node));
        out_ += "\x85R";
        break;
      case PickleKind::Global: out_ += fmt::format("c{}\n{}\n", graph_.module(node), graph_.name(node)); break;
      default: return false;
    }
    memoize(node);
    return true;
  }

  void write_number(u64 value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  void write_int(i64 value) {
    const auto bits = static_cast<u64>(value);
    if (value >= 0 && value < 1 << 8) {
      out_ += 'K';
      write_number(bits, 1);
    } else if (value >= 0 && value < 1 << 16) {
      out_ += 'M';
      write_number(bits, 2);
    } else if (value == static_cast<std::int32_t>(value)) {
      out_ += 'J';
      write_number(bits, 4);
    } else {
      int bytes = 8;
      while (value >> (8 * bytes - 9) == (value < 0 ? -1 : 0)) --bytes;
      out_ += '\x8a';
      write_number(static_cast<u64>(bytes), 1);
      write_number(bits, bytes);
    }
  }

  void write_float(double value) {
    out_ += 'G';
    const auto bits = std::bit_cast<u64>(value);
    for (int i = 7; i >= 0; --i) out_ += static_cast<char>(bits >> (8 * i) & 0xff);
  }

  void write_big_int(std::string_view bytes) {
    const bool is_short = bytes.size() < 256;
    out_ += is_short ? '\x8a' : '\x8b';
    write_number(bytes.size(), is_short ? 1 : 4);
    out_ += bytes;
  }

  void write_string(std::string_view text) {
    if (text.size() > std::numeric_limits<u32>::max())
      fail(ErrorCode::PickleLimit, {}, "a string of {} bytes; a pickle of protocol 2 holds less than 4 GiB",
           text.size());
    out_ += 'X';
    write_number(text.size(), 4);
    out_ += text;
  }

  /// Protocol 2 has no bytes: encode(text, 'latin1'), where code points 0 to 255 are the bytes.
  void write_bytes(std::string_view bytes) {
    std::string text;
    text.reserve(bytes.size());
    for (const char c : bytes) {
      const auto code = static_cast<unsigned char>(c);
      if (code >= 0x80) text += static_cast<char>(0xc0 | code >> 6);
      text += static_cast<char>(code >= 0x80 ? 0x80 | (code & 0x3f) : code);
    }
    write_once(kGlobalEncode);
    write_string(text);
    write_once(kLatin1);
    out_ += "\x86R";
  }

  // values with parts

  void write_nested(PickleRef node, u32 depth) {
    program_.clear();
    depth_ = depth + 1;
    switch (graph_.kind(node)) {
      case PickleKind::List:
        out_ += ']';
        memoize(node);
        plan_items(graph_.items(node), 1, 'a', 'e');
        break;
      case PickleKind::Dict:
        out_ += '}';
        memoize(node);
        plan_items(graph_.items(node), 2, 's', 'u');
        plan_states(node);
        break;
      case PickleKind::Tuple: plan_tuple(node); break;
      case PickleKind::Set: plan_set(node, kGlobalSet); break;
      case PickleKind::FrozenSet: plan_set(node, kGlobalFrozenSet); break;
      case PickleKind::Persistent:
        open(node);
        plan_value(graph_.arguments(node));
        plan_opcode('Q');
        plan_memo(node);
        break;
      default: plan_object(node);
    }
    steps_.insert(steps_.end(), program_.rbegin(), program_.rend());
  }

  void plan_value(PickleRef node) { program_.push_back({Step::Value, node, depth_}); }
  void plan_opcode(unsigned char opcode) { program_.push_back({Step::Opcode, opcode, 0}); }
  void plan_memo(PickleRef node) { program_.push_back({Step::Memo, node, 0}); }

  void plan_items(const std::vector<PickleRef>& items, std::size_t group, char one, char many) {
    for (std::size_t begin = 0; begin < items.size(); begin += kBatchItems * group) {
      const std::size_t count = std::min(items.size() - begin, kBatchItems * group);
      if (count > group) plan_opcode('(');
      for (std::size_t i = begin; i < begin + count; ++i) plan_value(items[i]);
      plan_opcode(static_cast<unsigned char>(count > group ? many : one));
    }
  }

  void plan_states(PickleRef node) {
    for (const PickleRef state : graph_.states(node)) {
      plan_value(state);
      plan_opcode('b');
    }
  }

  void plan_tuple(PickleRef node) {
    open(node);
    const std::vector<PickleRef> items = graph_.items(node);
    constexpr unsigned char kTuple1 = 0x85;
    const bool is_short = items.size() <= 3;
    if (!is_short) plan_opcode('(');
    for (const PickleRef item : items) plan_value(item);
    plan_opcode(is_short ? static_cast<unsigned char>(kTuple1 + items.size() - 1) : 't');
    plan_memo(node);
  }

  void plan_set(PickleRef node, std::string_view type) {
    open(node);
    write_once(type);
    out_ += ']';
    plan_items(graph_.items(node), 1, 'a', 'e');
    plan_opcode(0x85);
    plan_opcode('R');
    plan_memo(node);
  }

  void plan_object(PickleRef node) {
    open(node);
    plan_value(graph_.function(node));
    plan_value(graph_.arguments(node));
    plan_opcode(graph_.kind(node) == PickleKind::Call ? 'R' : 0x81);
    plan_memo(node);
    if (graph_.items_are_pairs(node))
      plan_items(graph_.items(node), 2, 's', 'u');
    else
      plan_items(graph_.items(node), 1, 'a', 'e');
    plan_states(node);
  }

  // the memo

  /// The node exists only once its parts are written.
  void open(PickleRef node) {
    if (places_[node] == kShared) places_[node] = kOpen;
  }

  void memoize(PickleRef node) {
    if (places_[node] == kOnce) return;
    places_[node] = next_slot_;
    put();
  }

  /// Opcodes for a value that the writer needs again and again, from the memo after the first time.
  void write_once(std::string_view opcodes) {
    const auto [found, added] = written_.try_emplace(opcodes, next_slot_);
    if (!added) return write_slot('h', 'j', found->second);
    out_ += opcodes;
    put();
  }

  void put() {
    if (next_slot_ >= kOpen) fail(ErrorCode::PickleLimit, {}, "a pickle with more than {} shared values", next_slot_);
    write_slot('q', 'r', next_slot_++);
  }

  void write_slot(char short_op, char long_op, u32 slot) {
    const bool is_short = slot < 256;
    out_ += is_short ? short_op : long_op;
    write_number(slot, is_short ? 1 : 4);
  }

  const PickleGraph& graph_;
  std::string out_;
  std::vector<Step> steps_;
  /// The steps of the value at hand, in order, and their depth.
  std::vector<Step> program_;
  u32 depth_ = 0;
  std::vector<u32> places_;
  u32 next_slot_ = 0;
  std::map<std::string_view, u32> written_;
};

}  // namespace

std::string write_pickle(const PickleGraph& graph, PickleRef root) { return Writer(graph).run(root); }

}  // namespace glu_ckpt
