#include "format/torch_tree.hpp"

#include <unordered_map>
#include <unordered_set>

#include "core/base64.hpp"
#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/parser_memory.hpp"
#include "format/pickle_graph.hpp"
#include "format/torch_tensor.hpp"

namespace glu_ckpt {
namespace {

constexpr int kMaxTreeDepth = 200;
constexpr std::string_view kPlaceholder = "glu_ckpt";
constexpr std::string_view kWrapper = "model";
/// States of generators have a few KB.
constexpr i64 kMaxEmbeddedBytes = i64{1} << 20;

/// Returns true where items() alternates keys and values.
bool is_mapping(const PickleGraph& graph, PickleRef node) {
  if (graph.kind(node) == PickleKind::Dict) return true;
  return graph.kind(node) == PickleKind::Call && graph.kind(graph.function(node)) == PickleKind::Global &&
         graph.module(graph.function(node)) == "collections" &&
         (graph.name(graph.function(node)) == "OrderedDict" || graph.name(graph.function(node)) == "defaultdict");
}

bool is_sequence(const PickleGraph& graph, PickleRef node) {
  return graph.kind(node) == PickleKind::List || graph.kind(node) == PickleKind::Tuple;
}

/// ('glu_ckpt', NAME).
PickleRef add_placeholder(PickleGraph& graph, const std::string& name) {
  return graph.add_persistent(graph.add_tuple({graph.add_string(std::string(kPlaceholder)), graph.add_string(name)}));
}

std::optional<std::string> placeholder_name(const PickleGraph& graph, PickleRef node) {
  if (graph.kind(node) != PickleKind::Persistent || graph.kind(graph.arguments(node)) != PickleKind::Tuple)
    return std::nullopt;
  const auto items = graph.items(graph.arguments(node));
  if (items.size() != 2 || graph.kind(items[0]) != PickleKind::String || graph.text(items[0]) != kPlaceholder ||
      graph.kind(items[1]) != PickleKind::String)
    return std::nullopt;
  return std::string(graph.text(items[1]));
}

/// ('glu_ckpt_tensor', DTYPE, SHAPE, BASE64).
constexpr std::string_view kEmbedded = "glu_ckpt_tensor";

PickleRef add_embedded(PickleGraph& graph, const EmbeddedTensor& tensor) {
  std::vector<PickleRef> shape;
  for (const i64 extent : tensor.shape) shape.push_back(graph.add_int(extent));
  return graph.add_persistent(graph.add_tuple(
      {graph.add_string(std::string(kEmbedded)), graph.add_string(std::string(dtype_name(tensor.dtype))),
       graph.add_container(PickleKind::Tuple, shape), graph.add_string(base64_encode(tensor.bytes))}));
}

std::optional<EmbeddedTensor> read_embedded(const PickleGraph& graph, PickleRef node, const InputPart& part) {
  if (graph.kind(node) != PickleKind::Persistent || graph.kind(graph.arguments(node)) != PickleKind::Tuple)
    return std::nullopt;
  const auto items = graph.items(graph.arguments(node));
  const auto is_text = [&](std::size_t i) { return graph.kind(items[i]) == PickleKind::String; };
  if (items.size() != 4 || !is_text(0) || graph.text(items[0]) != kEmbedded || !is_text(1) || !is_text(3))
    return std::nullopt;
  const auto dtype = dtype_from_name(graph.text(items[1]));
  auto bytes = base64_decode(graph.text(items[3]));
  EmbeddedTensor tensor{dtype.value_or(Dtype::U8), read_integers(graph, items[2], part, std::string(kEmbedded)), {}};
  const auto count = checked_product(tensor.shape);
  const auto bits = count ? checked_mul(*count, dtype_bits(tensor.dtype)) : std::nullopt;
  if (!dtype || !bytes || !bits || *bits != 8 * std::ssize(*bytes))
    fail_at(ErrorCode::ExtrasInvalid, {part, graph.position(node)},
            "a tensor that is kept among the objects is damaged");
  tensor.bytes = std::move(*bytes);
  return tensor;
}

/// The position of a walk: that of the latest node that has one. Values such as None have none.
class Whereabouts {
 public:
  Whereabouts(const PickleGraph& graph, const InputPart& part) : graph_(graph), part_(part) {}

  void visit(PickleRef node) {
    if (const auto position = graph_.position(node)) position_ = position;
  }
  WhereAt here(std::string tensor = {}) const { return {part_, position_, std::move(tensor)}; }

 private:
  const PickleGraph& graph_;
  const InputPart& part_;
  std::optional<i64> position_;
};

/// A bound on the nodes and the bytes of names that a walk of shared objects as a tree visits.
class WalkBudget {
 public:
  WalkBudget(const PickleGraph& graph, const InputPart& part)
      : at_(graph, part),
        read_bytes_(std::ssize(graph.source()) + static_cast<i64>(graph.size())),
        allowed_(parser_allowance(read_bytes_)) {}

  void spend(std::size_t amount, PickleRef node) {
    at_.visit(node);
    // A name is held by its tensor, by the tables that find it, and by the inventory.
    constexpr i64 kHeldForEach = 5;
    spent_ += kHeldForEach * static_cast<i64>(amount);
    if (spent_ > allowed_) refuse(spent_);
  }

  /// Refuses a copy that takes more memory than a pickle itself may.
  void check_copy(i64 held_bytes) const {
    if (held_bytes > allowed_) refuse(held_bytes);
  }

 private:
  [[noreturn]] void refuse(i64 held) const {
    fail_at(ErrorCode::PickleLimit, at_.here(), "the objects, as a tree, {}",
            over_allowance(read_bytes_, held).value());
  }

  Whereabouts at_;
  const i64 read_bytes_;
  const i64 allowed_;
  i64 spent_ = 0;
};

/// A key as part of a name.
std::string key_text(const PickleGraph& graph, PickleRef key, WalkBudget& budget, int depth = 0) {
  constexpr std::size_t kTextBytes =
      16;  // Without, shared tuples would be printed for minutes before they are refused.
  budget.spend(kTextBytes, key);
  switch (graph.kind(key)) {
    case PickleKind::String: return std::string(graph.text(key));
    case PickleKind::Int: return fmt::format("{}", graph.integer(key));
    case PickleKind::Bool: return graph.boolean(key) ? "True" : "False";
    case PickleKind::None: return "None";
    case PickleKind::Global: return fmt::format("{}.{}", graph.module(key), graph.name(key));
    case PickleKind::Tuple: {
      if (depth > kMaxTreeDepth) return "(...)";
      std::string text = "(";
      for (const PickleRef item : graph.items(key))
        text += (text.size() > 1 ? ", " : "") + key_text(graph, item, budget, depth + 1);
      return text + ")";
    }
    default: return fmt::format("<{}>", static_cast<int>(graph.kind(key)));
  }
}

/// Finds the nodes that have a tensor, or a stand-in for one, somewhere below them.
class TensorFinder {
 public:
  TensorFinder(const PickleGraph& graph, const InputPart& part)
      : graph_(graph), at_(graph, part), state_(graph.size(), State::Unknown) {}

  bool below(PickleRef node, int depth = 0) {
    constexpr int kMaxLinks = 2000;
    at_.visit(node);
    if (depth > kMaxLinks) fail_at(ErrorCode::PickleDepth, at_.here(), "objects are nested too deeply");
    State& state = state_[node];
    if (state != State::Unknown) return state == State::Yes;
    state = State::No;  // until proved otherwise: a cycle alone holds no tensor
    const bool found = look(node, depth);
    state_[node] = found ? State::Yes : State::No;
    return found;
  }

 private:
  enum class State : std::uint8_t { Unknown, No, Yes };

  bool look(PickleRef node, int depth) {
    const PickleKind kind = graph_.kind(node);
    if (kind == PickleKind::Persistent || is_tensor(graph_, node)) return true;
    bool found = false;
    if (kind == PickleKind::Call || kind == PickleKind::New) found = below(graph_.arguments(node), depth + 1);
    if (kind == PickleKind::Call || kind == PickleKind::New || kind == PickleKind::Dict)
      for (const PickleRef state : graph_.states(node)) found = below(state, depth + 1) || found;
    const bool has_items = kind == PickleKind::List || kind == PickleKind::Tuple || kind == PickleKind::Set ||
                           kind == PickleKind::FrozenSet || kind == PickleKind::Dict || kind == PickleKind::Call ||
                           kind == PickleKind::New;
    if (has_items)
      for (const PickleRef item : graph_.items(node)) found = below(item, depth + 1) || found;
    return found;
  }

  const PickleGraph& graph_;
  Whereabouts at_;
  std::vector<State> state_;
};

/// One of the (key, node) pairs that replace a tensor or its stand-in.
struct Replacement {
  std::string key;
  PickleRef node;
};

/// Copies a tree container by container, and asks what to put where a tensor was.
class TreeCopier {
 public:
  TreeCopier(const PickleGraph& from, PickleGraph& to, const InputPart& part)
      : from_(from), to_(to), part_(part), at_(from, part_), finder_(from, part_), budget_(from, part_) {}
  virtual ~TreeCopier() = default;

  PickleRef run(PickleRef root) {
    drop_wrapper_ = wraps_model(root);
    const PickleRef copied = copy(root, {}, 0);
    budget_.check_copy(to_.bytes());
    return copied;
  }

  /// Returns true for the state of a random number generator beside the model.
  bool is_generator(const std::string& name) const {
    const std::string top = name.substr(0, name.find('.'));
    return drop_wrapper_ && (top == "rng" || top.ends_with("rng_state") || top.ends_with("rng_states"));
  }

 protected:
  /// Returns the entries in place of the tensor `node` of this name under `key`.
  virtual std::vector<Replacement> replace(PickleRef node, const std::string& key, const std::string& name) = 0;
  /// Returns the new tensors of a dict, after all else was put into it.
  virtual std::vector<Replacement> additions() { return {}; }

  const PickleGraph& from_;
  PickleGraph& to_;
  const InputPart part_;
  Whereabouts at_;

 private:
  /// The top-level key "model" over a dict of tensors.
  bool wraps_model(PickleRef root) {
    if (!is_mapping(from_, root)) return false;
    const auto items = pairs(root);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      if (is_wrapper_key(items[i]) && is_mapping(from_, items[i + 1]) && finder_.below(items[i + 1])) return true;
    return false;
  }

  bool is_wrapper_key(PickleRef key) const {
    return from_.kind(key) == PickleKind::String && from_.text(key) == kWrapper;
  }

  /// Alternating keys and values; an OrderedDict may have got them as a list of pairs.
  std::vector<PickleRef> pairs(PickleRef node) const {
    std::vector<PickleRef> items = from_.items(node);
    if (from_.kind(node) != PickleKind::Call || from_.kind(from_.arguments(node)) != PickleKind::Tuple) return items;
    std::vector<PickleRef> given;
    for (const PickleRef argument : from_.items(from_.arguments(node)))
      if (from_.kind(argument) == PickleKind::List)
        for (const PickleRef pair : from_.items(argument))
          if (is_sequence(from_, pair) && from_.items(pair).size() == 2)
            for (const PickleRef part : from_.items(pair)) given.push_back(part);
    given.insert(given.end(), items.begin(), items.end());
    return given;
  }

  PickleRef copy(PickleRef node, const std::string& path, int depth) {
    at_.visit(node);
    budget_.spend(1 + path.size(), node);  // containers that are shared are copied each time
    if (depth > kMaxTreeDepth)
      fail_at(ErrorCode::PickleDepth, at_.here(), "objects are nested more than {} deep at '{}'", kMaxTreeDepth, path);
    if (!finder_.below(node)) return to_.import(from_, node, [this](i64 held) { budget_.check_copy(held); });
    if (is_mapping(from_, node)) return copy_mapping(node, path, depth);
    if (is_sequence(from_, node)) return copy_sequence(node, path, depth);
    fail_at(ErrorCode::NotSupported, at_.here(path),
            "'{}' is an object with tensors inside it, which is not supported; save its tensors in dicts or lists",
            path);
  }

  bool holds_tensor(PickleRef node) const {
    return is_tensor(from_, node) || from_.kind(node) == PickleKind::Persistent;
  }

  PickleRef copy_mapping(PickleRef node, const std::string& path, int depth) {
    const auto items = pairs(node);
    std::vector<PickleRef> copied;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const std::string key = key_text(from_, items[i], budget_);
      const bool wrapper = depth == 0 && drop_wrapper_ && is_wrapper_key(items[i]);
      const std::string name = wrapper ? std::string() : path.empty() ? key : fmt::format("{}.{}", path, key);
      if (holds_tensor(items[i + 1])) {
        at_.visit(items[i + 1]);
        budget_.spend(1 + name.size(), items[i + 1]);
        for (const Replacement& with : replace(items[i + 1], key, name)) {
          copied.push_back(with.key == key ? to_.import(from_, items[i]) : to_.add_string(with.key));
          copied.push_back(with.node);
        }
      } else {
        copied.push_back(to_.import(from_, items[i]));
        copied.push_back(copy(items[i + 1], name, depth + 1));
      }
    }
    const bool takes_new = drop_wrapper_ ? depth == 1 && path.empty() : depth == 0;
    if (takes_new && !added_) {
      added_ = true;
      for (const Replacement& with : additions()) {
        copied.push_back(to_.add_string(with.key));
        copied.push_back(with.node);
      }
    }
    if (from_.kind(node) == PickleKind::Dict) return to_.add_container(PickleKind::Dict, copied);
    return copy_ordered_dict(node, copied);
  }

  PickleRef copy_ordered_dict(PickleRef node, const std::vector<PickleRef>& items) {
    const bool ordered = from_.name(from_.function(node)) == "OrderedDict";
    const PickleRef arguments = ordered ? to_.add_tuple({}) : to_.import(from_, from_.arguments(node));
    const PickleRef made = to_.add_call(to_.import(from_, from_.function(node)), arguments);
    to_.extend(made, items);
    for (const PickleRef state : from_.states(node)) to_.add_state(made, to_.import(from_, state));
    return made;
  }

  PickleRef copy_sequence(PickleRef node, const std::string& path, int depth) {
    std::vector<PickleRef> copied;
    const auto items = from_.items(node);
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::string key = fmt::format("{}", i);
      const std::string name = path.empty() ? key : fmt::format("{}.{}", path, key);
      if (!holds_tensor(items[i])) {
        copied.push_back(copy(items[i], name, depth + 1));
        continue;
      }
      at_.visit(items[i]);
      budget_.spend(1 + name.size(), items[i]);
      const auto with = replace(items[i], key, name);
      if (with.size() != 1)
        fail_at(ErrorCode::NotSupported, at_.here(name),
                "'{}' stands in a list, where no tensor can be added or taken away", name);
      copied.push_back(with.front().node);
    }
    return to_.add_container(from_.kind(node), copied);
  }

  TensorFinder finder_;
  bool drop_wrapper_ = false;
  bool added_ = false;
  WalkBudget budget_;
};

/// Tensors -> placeholders.
class ContentsReader final : public TreeCopier {
 public:
  ContentsReader(const PickleGraph& from, PickleGraph& to, const InputPart& part, const ReadTensor& read)
      : TreeCopier(from, to, part), read_(read) {}
  std::vector<TorchContents::Found> tensors;

 private:
  std::vector<Replacement> replace(PickleRef node, const std::string& key, const std::string& name) override {
    if (!is_tensor(from_, node))
      fail_at(ErrorCode::TorchObject, at_.here(name), "'{}' is a bare storage; only tensors are supported", name);
    if (!names_.insert(name).second)
      fail_at(ErrorCode::DuplicateKey, at_.here(name), "two tensors are called '{}'", name);
    if (is_generator(name)) {
      const TorchTensor tensor = read_tensor(from_, node, part_, name);
      if (tensor.bytes() <= kMaxEmbeddedBytes)
        return {{key, add_embedded(to_, {tensor.dtype, tensor.value_shape(), read_(tensor, name)})}};
    }
    tensors.push_back({name, node});
    return {{key, add_placeholder(to_, name)}};
  }

  const ReadTensor& read_;
  std::unordered_set<std::string> names_;
};

/// Placeholders -> outputs.
class TreeFiller final : public TreeCopier {
 public:
  TreeFiller(const PickleGraph& from, PickleGraph& to, const TorchTree& tree, const std::vector<OutputTensor>& outputs,
             std::span<const std::size_t> members, const MakeTensor& make)
      : TreeCopier(from, to, part_of(tree)), tree_(tree), outputs_(outputs), make_(make) {
    for (const std::size_t output : members) by_source_[local(outputs_[output].from)].push_back(output);
  }

 private:
  std::string local(const std::string& name) const {
    return name.starts_with(tree_.prefix) ? name.substr(tree_.prefix.size()) : name;
  }

  std::vector<Replacement> replace(PickleRef node, const std::string& key, const std::string&) override {
    if (auto embedded = read_embedded(from_, node, part_))
      return {{key, make_.embedded ? make_.embedded(to_, std::move(*embedded)) : to_.import(from_, node)}};
    const auto from = placeholder_name(from_, node);
    if (!from) fail_at(ErrorCode::ExtrasInvalid, at_.here(), "an object's pickle holds a storage instead of a name");
    std::vector<Replacement> made;
    const auto found = by_source_.find(*from);
    if (found == by_source_.end()) return made;
    for (const std::size_t output : found->second)
      made.push_back({renamed_key(key, *from, local(outputs_[output].name)), make_.output(to_, output)});
    by_source_.erase(found);
    return made;
  }

  /// Outputs whose source is not in this tree. They are added in the order of their numbers.
  std::vector<Replacement> additions() override {
    std::vector<std::size_t> rest;
    for (const auto& [from, outputs] : by_source_)
      if (!in_tree(from)) rest.insert(rest.end(), outputs.begin(), outputs.end());
    std::sort(rest.begin(), rest.end());
    std::vector<Replacement> made;
    made.reserve(rest.size());
    for (const std::size_t output : rest) made.push_back({local(outputs_[output].name), make_.output(to_, output)});
    return made;
  }

  bool in_tree(const std::string& name) {
    if (!listed_) {
      listed_ = true;
      for (PickleRef node = 0; node < from_.size(); ++node)
        if (auto held = placeholder_name(from_, node)) held_.insert(std::move(*held));
    }
    return held_.contains(name);
  }

  const TorchTree& tree_;
  const std::vector<OutputTensor>& outputs_;
  const MakeTensor& make_;
  std::unordered_map<std::string, std::vector<std::size_t>> by_source_;
  bool listed_ = false;
  std::unordered_set<std::string> held_;
};

bool is_flat(const PickleGraph& graph, PickleRef root) {
  if (!is_mapping(graph, root) || !graph.states(root).empty()) return false;
  const auto items = graph.items(root);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2)
    if (graph.kind(items[i]) != PickleKind::String ||
        (!is_tensor(graph, items[i + 1]) && !placeholder_name(graph, items[i + 1])))
      return false;
  return true;
}

/// Dicts are walked, as PyTorch's planner does; anything else without tensors is one object.
void list_objects(const PickleGraph& graph, PickleRef node, const std::string& path, int depth, TensorFinder& finder,
                  WalkBudget& budget, std::vector<TreeObject>& found) {
  budget.spend(1 + path.size(), node);
  const bool walk = is_mapping(graph, node) || (is_sequence(graph, node) && finder.below(node));
  const auto items = walk ? graph.items(node) : std::vector<PickleRef>();
  if (graph.kind(node) == PickleKind::Persistent) return;
  if (items.empty() || depth > kMaxTreeDepth) {
    found.push_back({path, node});
    return;
  }
  const std::size_t step = is_mapping(graph, node) ? 2 : 1;
  for (std::size_t i = 0; i + step <= items.size(); i += step) {
    const std::string key = step == 2 ? key_text(graph, items[i], budget) : fmt::format("{}", i);
    list_objects(graph, items[i + step - 1], path.empty() ? key : fmt::format("{}.{}", path, key), depth + 1, finder,
                 budget, found);
  }
}

}  // namespace

InputPart part_of(const TorchTree& tree) { return tree.from.file.empty() ? InputPart(tree.file, -1) : tree.from; }

TorchTree without_keys(const TorchTree& tree, const std::function<bool(const std::string& key)>& dropped) {
  PickleGraph from(tree.pickle);
  const PickleRef root = read_pickle(from, PickleNames::Torch, part_of(tree));
  if (!is_mapping(from, root)) return tree;
  PickleGraph graph;
  const InputPart part = part_of(tree);
  WalkBudget budget(from, part);
  std::vector<PickleRef> kept;
  const auto items = from.items(root);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2)
    if (!dropped(key_text(from, items[i], budget))) {
      kept.push_back(graph.import(from, items[i]));
      kept.push_back(graph.import(from, items[i + 1]));
    }
  PickleRef made = graph.add_container(PickleKind::Dict, {});
  if (from.kind(root) == PickleKind::Call)
    made = graph.add_call(graph.import(from, from.function(root)), graph.import(from, from.arguments(root)));
  graph.extend(made, kept);
  for (const PickleRef state : from.states(root)) graph.add_state(made, graph.import(from, state));
  return {tree.file, tree.prefix, write_pickle(graph, made)};
}

std::vector<TreeObject> objects_of_tree(const PickleGraph& graph, PickleRef root, const InputPart& part) {
  TensorFinder finder(graph, part);
  std::vector<TreeObject> found;
  WalkBudget budget(graph, part);
  list_objects(graph, root, {}, 0, finder, budget, found);
  return found;
}

std::string renamed_key(const std::string& key, const std::string& from, const std::string& output) {
  if (from == output) return key;
  if (!from.ends_with(key)) return output;
  const std::string_view head = std::string_view(from).substr(0, from.size() - key.size());
  return output.starts_with(head) ? output.substr(head.size()) : output;
}

bool is_flat_tree(const TorchTree& tree) {
  PickleGraph graph(tree.pickle);
  const PickleRef root = read_pickle(graph, PickleNames::Torch, part_of(tree));
  return is_flat(graph, root);
}

TorchContents read_contents(const PickleGraph& graph, PickleRef root, const InputPart& part, const ReadTensor& read) {
  PickleGraph tree;
  ContentsReader reader(graph, tree, part, read);
  TorchContents contents;
  if (is_tensor(graph, root))
    fail_at(ErrorCode::NotSupported, {part, graph.position(root)},
            "holds one tensor without a name; only dicts of tensors are supported");
  const PickleRef copied = reader.run(root);
  contents.tensors = std::move(reader.tensors);
  contents.pickle = write_pickle(tree, copied);
  contents.flat = is_flat(graph, root);
  return contents;
}

PickleRef place_in_tree(const TorchTree& tree, const std::vector<OutputTensor>& outputs,
                        std::span<const std::size_t> members, PickleGraph& graph, const MakeTensor& make) {
  PickleGraph from(tree.pickle);
  const PickleRef root = read_pickle(from, PickleNames::Torch, part_of(tree));
  std::size_t placed = 0;
  MakeTensor count = make;
  count.output = [&](PickleGraph& into, std::size_t output) {
    ++placed;
    return make.output(into, output);
  };
  const PickleRef made = TreeFiller(from, graph, tree, outputs, members, count).run(root);
  if (placed != members.size())
    fail_at(ErrorCode::ExtrasInvalid, {part_of(tree), from.position(root)},
            "{} of its {} tensors have no place among its objects, which are not one dict", members.size() - placed,
            members.size());
  return made;
}

TorchTree rename_in_tree(const TorchTree& tree, const std::vector<OutputTensor>& outputs,
                         std::span<const std::size_t> members) {
  PickleGraph graph;
  MakeTensor make;
  make.output = [&](PickleGraph& into, std::size_t output) {
    const std::string& name = outputs[output].name;
    return add_placeholder(into, name.starts_with(tree.prefix) ? name.substr(tree.prefix.size()) : name);
  };
  const PickleRef root = place_in_tree(tree, outputs, members, graph, make);
  return {tree.file, tree.prefix, write_pickle(graph, root)};
}

}  // namespace glu_ckpt
