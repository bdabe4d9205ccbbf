/// A pickle is a program for a stack machine. This one knows the opcodes of protocols 2 to 5 that build values,
/// and none that looks up, imports or calls: GLOBAL pushes a name, REDUCE a note of what would be called.

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <optional>

#include "core/fail.hpp"
#include "core/parser_memory.hpp"
#include "core/readable.hpp"
#include "format/pickle_graph.hpp"

namespace glu_ckpt {

namespace {

/// The opcodes, named as in Python's pickletools.
enum Op : unsigned char {
  kMark = '(',
  kEmptyTuple = ')',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

/// Refs and places in the graph are 32 bits wide; a pickle this long needs fewer than that many.
constexpr std::size_t kMaxPickleBytes = std::size_t{1} << 30;
constexpr std::size_t kMaxIntegerBytes = 4096;
/// torch writes strings with Python's surrogatepass.
bool is_python_text(std::string_view text) { return is_utf8(text, Surrogates::Pass); }

/// A name out of a file, fit for a message.
std::string printable(std::string_view text) {
  constexpr std::size_t kShown = 80;
  std::string shown(text.substr(0, kShown));
  for (char& c : shown)
    if (c < 0x20 || c > 0x7e) c = '?';
  return text.size() > kShown ? shown + "..." : shown;
}

/// Slot -> ref. Slots count up from 0 in what software writes; others go to a map, so that a large number
/// allocates nothing.
class Memo {
 public:
  std::optional<PickleRef> get(u32 slot) const {
    if (slot < dense_.size()) return dense_[slot];
    const auto found = sparse_.find(slot);
    if (found == sparse_.end()) return std::nullopt;
    return found->second;
  }

  void put(u32 slot, PickleRef node) {
    if (slot < dense_.size()) {
      dense_[slot] = node;
    } else if (slot == dense_.size()) {
      dense_.push_back(node);
      sparse_.erase(slot);
    } else {
      sparse_[slot] = node;
    }
  }

  i64 bytes() const {
    constexpr i64 kSparseBytes = 48;
    return std::ssize(dense_) * static_cast<i64>(sizeof(PickleRef)) + std::ssize(sparse_) * kSparseBytes;
  }

  /// The slot that MEMOIZE takes: the number of those in use.
  u32 next_slot() const { return static_cast<u32>(dense_.size() + sparse_.size()); }

 private:
  std::deque<PickleRef> dense_;
  std::map<u32, PickleRef> sparse_;
};

class Reader {
 public:
  Reader(PickleGraph& graph, PickleNames names, const InputPart& part, std::size_t begin)
      : graph_(graph),
        names_(names),
        part_(part),
        text_(graph.source()),
        begin_(begin),
        begin_bytes_(graph.bytes()),
        at_(begin),
        op_at_(begin) {}

  PickleRef run() {
    read_protocol();
    while (read_opcode()) check_budget();
    graph_.set_position(PickleGraph::kNotRead);
    return stack_.back();
  }

  std::size_t end() const { return at_; }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(ErrorCode code, fmt::format_string<Args...> text, Args&&... args) const {
    fail_at(code, {part_, static_cast<i64>(op_at_)}, text, std::forward<Args>(args)...);
  }

  // arguments of opcodes

  std::string_view take(u64 bytes) {
    const std::size_t left = text_.size() - at_;
    if (bytes > left)
      refuse(ErrorCode::PickleTruncated, "the pickle needs {} more bytes and has {}; the file is cut or damaged", bytes,
             left);
    if (at_ + bytes > kMaxPickleBytes)
      refuse(ErrorCode::PickleLimit, "the pickle is longer than {} bytes, which is the limit", kMaxPickleBytes);
    const std::string_view taken = text_.substr(at_, static_cast<std::size_t>(bytes));
    at_ += static_cast<std::size_t>(bytes);
    return taken;
  }

  u64 take_number(std::size_t bytes) {
    u64 value = 0;
    const std::string_view taken = take(bytes);
    for (std::size_t i = 0; i < bytes; ++i) value |= u64{static_cast<unsigned char>(taken[i])} << (8 * i);
    return value;
  }

  std::string_view take_counted(std::size_t count_bytes) { return take(take_number(count_bytes)); }

  std::string_view take_line() {
    const std::size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos)
      refuse(ErrorCode::PickleTruncated, "the pickle ends within a name; the file is cut or damaged");
    const std::string_view line = take(end + 1 - at_);
    return line.substr(0, line.size() - 1);
  }

  // the stack

  void push(PickleRef node) { stack_.push_back(node); }

  /// The index of the first value above the last MARK; nothing reaches below.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  void need(std::size_t values) const {
    if (stack_.size() - floor() < values)
      refuse(ErrorCode::PickleStack, "the opcode needs {} values on the stack and there are {}; the pickle is damaged",
             values, stack_.size() - floor());
  }

  PickleRef pop() {
    need(1);
    const PickleRef node = stack_.back();
    stack_.pop_back();
    return node;
  }

  PickleRef top() const {
    need(1);
    return stack_.back();
  }

  std::span<const PickleRef> last(std::size_t values) const { return std::span(stack_).last(values); }

  /// The number of values above the last MARK, which is removed.
  std::size_t close_mark() {
    if (marks_.empty()) refuse(ErrorCode::PickleStack, "the opcode needs a MARK and there is none");
    const std::size_t values = stack_.size() - marks_.back();
    marks_.pop_back();
    return values;
  }

  void replace(std::size_t values, PickleRef node) {
    stack_.resize(stack_.size() - values);
    push(node);
  }

  /// A small file must not take all memory: small values cost many times the bytes that spell them.
  void check_budget() const {
    // Vectors that grow hold up to twice what is in them.
    const i64 held = graph_.bytes() - begin_bytes_ + memo_.bytes() +
                     2 * static_cast<i64>(sizeof(PickleRef)) * (std::ssize(stack_) + std::ssize(marks_));
    if (const auto over = over_allowance(static_cast<i64>(at_ - begin_), held))
      refuse(ErrorCode::PickleLimit, "the pickle's values {}", *over);
  }

  // opcodes

  void read_protocol() {
    const std::string_view what = stand_in_text(text_.substr(begin_), Meant::Binary);
    if (take_number(1) != kProto)
      refuse(ErrorCode::PickleOpcode, "not a pickle of protocol 2 to 5: {}",
             what.empty() ? "it does not begin with PROTO" : what);
    const u64 protocol = take_number(1);
    if (protocol < 2 || protocol > 5)
      refuse(ErrorCode::PickleOpcode, "a pickle of protocol {}; protocols 2 to 5 are read", protocol);
  }

  void read_frame() {
    const u64 bytes = take_number(8);
    if (bytes > text_.size() - at_)
      refuse(ErrorCode::PickleTruncated, "a frame of {} bytes where {} are left; the file is cut or damaged", bytes,
             text_.size() - at_);
  }

  void push_integer(std::string_view bytes) {
    if (bytes.size() > kMaxIntegerBytes)
      refuse(ErrorCode::PickleLimit, "an integer of {} bytes; the limit is {}", bytes.size(), kMaxIntegerBytes);
    const auto negative = [](char c) { return (static_cast<unsigned char>(c) & 0x80) != 0; };
    // Bytes that only repeat the sign do not count.
    while (bytes.size() > 8 && bytes.back() == (negative(bytes[bytes.size() - 2]) ? '\xff' : '\0'))
      bytes.remove_suffix(1);
    if (bytes.size() > 8) return push(graph_.add_view(PickleKind::BigInt, bytes));
    u64 value = !bytes.empty() && negative(bytes.back()) ? ~u64{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    push(graph_.add_int(static_cast<i64>(value)));
  }

  void push_float() {
    u64 bits = 0;
    for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
    push(graph_.add_float(std::bit_cast<double>(bits)));
  }

  void push_string(std::string_view text) {
    if (!is_python_text(text)) refuse(ErrorCode::PickleOpcode, "a string of {} bytes is not UTF-8", text.size());
    push(graph_.add_view(PickleKind::String, text));
  }

  /// A str of Python 2, which is a string or bytes.
  void push_old_string(std::string_view text) {
    push(graph_.add_view(is_python_text(text) ? PickleKind::String : PickleKind::Bytes, text));
  }

  void push_container(PickleKind kind, std::size_t values) {
    need(values);
    replace(values, graph_.add_container(kind, last(values)));
  }

  bool is_object(PickleRef node) const {
    const PickleKind kind = graph_.kind(node);
    return kind == PickleKind::Call || kind == PickleKind::New;
  }

  void add_to_set() {
    const std::size_t values = close_mark();
    const PickleRef target = target_below(values);
    if (graph_.kind(target) != PickleKind::Set) refuse(ErrorCode::PickleStack, "ADDITEMS to a value that is no set");
    graph_.extend(target, last(values));
    stack_.resize(stack_.size() - values);
  }

  PickleRef target_below(std::size_t values) const {
    need(values + 1);
    return stack_[stack_.size() - values - 1];
  }

  void append(std::size_t values) {
    const PickleRef target = target_below(values);
    if (is_object(target)) {
      need_items(target, /*pairs=*/false);
      graph_.extend_single(target, last(values));
    } else if (graph_.kind(target) == PickleKind::List) {
      graph_.extend(target, last(values));
    } else {
      refuse(ErrorCode::PickleStack, "APPENDS to a value that is no list");
    }
    stack_.resize(stack_.size() - values);
  }

  void set_items(std::size_t values) {
    if (values % 2 != 0)
      refuse(ErrorCode::PickleStack, "SETITEMS with {} values, which are not pairs of key and value", values);
    const PickleRef target = target_below(values);
    if (is_object(target))
      need_items(target, /*pairs=*/true);
    else if (graph_.kind(target) != PickleKind::Dict)
      refuse(ErrorCode::PickleStack, "SETITEMS on a value that is no dict");
    graph_.extend(target, last(values));
    stack_.resize(stack_.size() - values);
  }

  void need_items(PickleRef object, bool pairs) const {
    if (graph_.has_items(object) && graph_.items_are_pairs(object) != pairs)
      refuse(ErrorCode::PickleStack, "both APPENDS and SETITEMS on one object");
  }

  std::string name_of(PickleRef global) const {
    return printable(graph_.module(global)) + "." + printable(graph_.name(global));
  }

  void push_global(std::string_view module, std::string_view name) {
    if (name_use(names_, module, name) == NameUse::Refused)
      refuse(ErrorCode::PickleGlobal,
             "the pickle names {}.{}, which is not in the list of names that checkpoints hold; it was not run",
             printable(module), printable(name));
    push(graph_.add_global(module, name));
  }

  void push_stack_global() {
    need(2);
    const PickleRef name = pop();
    const PickleRef module = pop();
    if (graph_.kind(name) != PickleKind::String || graph_.kind(module) != PickleKind::String)
      refuse(ErrorCode::PickleStack, "STACK_GLOBAL needs a module and a name as strings");
    push_global(graph_.text(module), graph_.text(name));
  }

  void need_callable(PickleRef function, PickleRef arguments) const {
    if (names_ == PickleNames::Any) return;
    if (graph_.kind(function) != PickleKind::Global)
      refuse(ErrorCode::PickleCall, "the pickle calls a value that is not a name; it was not run");
    if (name_use(names_, graph_.module(function), graph_.name(function)) != NameUse::Callable)
      refuse(ErrorCode::PickleCall, "the pickle calls {}, which checkpoints hold only as a value; it was not run",
             name_of(function));
    if (graph_.kind(arguments) != PickleKind::Tuple)
      refuse(ErrorCode::PickleCall, "the arguments for {} are not a tuple", name_of(function));
  }

  /// getattr(enum class, 'MEMBER'), which is how Python 3.11.2 pickles a member of an enum.
  bool is_enum_lookup(PickleRef function, PickleRef arguments) const {
    if (names_ != PickleNames::DcpMetadata || graph_.kind(function) != PickleKind::Global) return false;
    if (graph_.name(function) != "getattr" || graph_.kind(arguments) != PickleKind::Tuple) return false;
    const std::vector<PickleRef> items = graph_.items(arguments);
    if (items.size() != 2 || graph_.kind(items[0]) != PickleKind::Global) return false;
    const std::string_view type = graph_.name(items[0]);
    const bool is_enum = type == "_MEM_FORMAT_ENCODING" || type == "MEM_FORMAT_ENCODING" || type == "WriteItemType";
    return is_enum && graph_.kind(items[1]) == PickleKind::String;
  }

  void reduce() {
    need(2);
    const PickleRef arguments = pop();
    const PickleRef function = pop();
    if (!is_enum_lookup(function, arguments)) need_callable(function, arguments);
    push(graph_.add_call(function, arguments));
  }

  void new_object() {
    need(2);
    const PickleRef arguments = pop();
    const PickleRef type = pop();
    need_callable(type, arguments);
    push(graph_.add_new(type, arguments));
  }

  void new_object_ex() {
    need(3);
    const PickleRef keywords = pop();
    if (names_ != PickleNames::Any && (graph_.kind(keywords) != PickleKind::Dict || graph_.has_items(keywords)))
      refuse(ErrorCode::PickleCall, "NEWOBJ_EX with keyword arguments, which no checkpoint is known to hold");
    new_object();
  }

  void build() {
    need(2);
    const PickleRef state = pop();
    const PickleRef object = top();
    if (!is_object(object) && graph_.kind(object) != PickleKind::Dict) {
      if (names_ == PickleNames::Any) return;
      refuse(ErrorCode::PickleCall, "BUILD gives a state to a value that is no object");
    }
    graph_.add_state(object, state);
  }

  void get(u64 slot) {
    const std::optional<PickleRef> node = memo_.get(static_cast<u32>(slot));
    if (!node) refuse(ErrorCode::PickleMemo, "the pickle fetches memo {}, which was never set", slot);
    push(*node);
  }

  void put(u64 slot) { memo_.put(static_cast<u32>(slot), top()); }

  void pop_or_mark() {
    if (stack_.size() > floor())
      stack_.pop_back();
    else if (!marks_.empty())
      marks_.pop_back();
    else
      refuse(ErrorCode::PickleStack, "POP with nothing on the stack; the pickle is damaged");
  }

  void pop_mark() {
    const std::size_t values = close_mark();
    stack_.resize(stack_.size() - values);
  }

  void stop() const {
    if (!marks_.empty() || stack_.size() != 1)
      refuse(ErrorCode::PickleStack, "the pickle stops with {} values and {} marks on the stack instead of one value",
             stack_.size(), marks_.size());
  }

  /// False after STOP.
  bool read_opcode() {
    op_at_ = at_;
    graph_.set_position(static_cast<u32>(op_at_));
    const u64 op = take_number(1);
    switch (op) {
      case kStop: stop(); return false;
      case kFrame: read_frame(); break;
      case kMark: marks_.push_back(static_cast<u32>(stack_.size())); break;
      case kPop: pop_or_mark(); break;
      case kPopMark: pop_mark(); break;
      case kDup: push(top()); break;

      case kNone: push(graph_.add_none()); break;
      case kNewTrue: push(graph_.add_bool(true)); break;
      case kNewFalse: push(graph_.add_bool(false)); break;
      case kBinInt: push_integer(take(4)); break;
      case kBinInt1: push(graph_.add_int(static_cast<i64>(take_number(1)))); break;
      case kBinInt2: push(graph_.add_int(static_cast<i64>(take_number(2)))); break;
      case kLong1: push_integer(take_counted(1)); break;
      case kLong4: push_integer(take_counted(4)); break;
      case kBinFloat: push_float(); break;

      case kShortBinUnicode: push_string(take_counted(1)); break;
      case kBinUnicode: push_string(take_counted(4)); break;
      case kBinUnicode8: push_string(take_counted(8)); break;
      case kShortBinString: push_old_string(take_counted(1)); break;
      case kBinString: push_old_string(take_counted(4)); break;
      case kShortBinBytes: push(graph_.add_view(PickleKind::Bytes, take_counted(1))); break;
      case kBinBytes: push(graph_.add_view(PickleKind::Bytes, take_counted(4))); break;
      case kBinBytes8: push(graph_.add_view(PickleKind::Bytes, take_counted(8))); break;
      case kByteArray8: push(graph_.add_view(PickleKind::ByteArray, take_counted(8))); break;

      case kEmptyTuple: push_container(PickleKind::Tuple, 0); break;
      case kTuple1: push_container(PickleKind::Tuple, 1); break;
      case kTuple2: push_container(PickleKind::Tuple, 2); break;
      case kTuple3: push_container(PickleKind::Tuple, 3); break;
      case kTuple: push_container(PickleKind::Tuple, close_mark()); break;
      case kFrozenSet: push_container(PickleKind::FrozenSet, close_mark()); break;
      case kEmptyList: push_container(PickleKind::List, 0); break;
      case kEmptyDict: push_container(PickleKind::Dict, 0); break;
      case kEmptySet: push_container(PickleKind::Set, 0); break;
      case kAppend: append(1); break;
      case kAppends: append(close_mark()); break;
      case kSetItem: set_items(2); break;
      case kSetItems: set_items(close_mark()); break;
      case kAddItems: add_to_set(); break;

      case kGlobal: read_global(); break;
      case kStackGlobal: push_stack_global(); break;
      case kReduce: reduce(); break;
      case kNewObj: new_object(); break;
      case kNewObjEx: new_object_ex(); break;
      case kBuild: build(); break;
      case kBinPersId: push(graph_.add_persistent(pop())); break;

      case kBinPut: put(take_number(1)); break;
      case kLongBinPut: put(take_number(4)); break;
      case kMemoize: put(memo_.next_slot()); break;
      case kBinGet: get(take_number(1)); break;
      case kLongBinGet: get(take_number(4)); break;

      default:
        refuse(ErrorCode::PickleOpcode, "opcode {:#04x}, which pickles of checkpoints do not hold; it was not run", op);
    }
    return true;
  }

  void read_global() {
    const std::string_view module = take_line();
    const std::string_view name = take_line();
    push_global(module, name);
  }

  PickleGraph& graph_;
  const PickleNames names_;
  const InputPart& part_;
  const std::string_view text_;
  const std::size_t begin_;
  /// What the graph held before.
  const i64 begin_bytes_;
  std::size_t at_;
  /// The position of the current opcode, for messages.
  std::size_t op_at_;
  std::vector<PickleRef> stack_;
  std::vector<u32> marks_;
  Memo memo_;
};

}  // namespace

PickleRef read_pickle(PickleGraph& graph, PickleNames names, const InputPart& part, std::size_t begin,
                      std::size_t* end) {
  Reader reader(graph, names, part, std::min(begin, graph.source().size()));
  const PickleRef root = reader.run();
  if (end != nullptr) *end = reader.end();
  return root;
}

}  // namespace glu_ckpt
