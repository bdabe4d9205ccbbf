#include "remote/remote_store.hpp"

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kMostNames = 1'000'000;

/// Names become paths of an output; one from a server is as good as one from anybody.
bool is_safe(std::string_view name) {
  if (name.empty() || name.find('\0') != name.npos || name.find_first_of("\\\n\r") != name.npos) return false;
  for (;;) {
    const std::string_view part = name.substr(0, name.find('/'));
    if (part.empty() || part == "." || part == "..") return false;
    if (part.size() == name.size()) return true;
    name.remove_prefix(part.size() + 1);
  }
}

}  // namespace

RemoteNode* RemoteTree::find(const std::string& name) {
  const auto found = nodes_.find(name);
  return found == nodes_.end() ? nullptr : &found->second;
}

RemoteNode& RemoteTree::add(const std::string& name, bool is_directory) {
  if (!is_safe(name) || nodes_.size() >= kMostNames)
    fail(ErrorCode::NotSupported, {root_, {}}, "{}: its server lists {}", root_,
         is_safe(name) ? "a million files" : "a file by a name that leads elsewhere");
  for (std::size_t slash = name.find('/'); slash != name.npos; slash = name.find('/', slash + 1))
    nodes_[name.substr(0, slash)].is_directory = true;
  RemoteNode& node = nodes_[name];
  node.is_directory = node.is_directory || is_directory;
  return node;
}

void RemoteTree::set_all_listed() {
  for (auto& [name, node] : nodes_) node.is_listed = true;
}

std::vector<std::string> RemoteTree::names_in(const std::string& directory) const {
  const std::string prefix = directory.empty() ? "" : directory + "/";
  std::vector<std::string> names;
  for (auto at = nodes_.lower_bound(prefix); at != nodes_.end() && at->first.starts_with(prefix); ++at) {
    const std::string name = at->first.substr(prefix.size());
    if (!name.empty() && name.find('/') == name.npos) names.push_back(name);
  }
  return names;
}

std::string RemoteStore::version_in(const HttpHead& head) const {
  if (const auto etag = head.find("etag")) return bare_etag(*etag);
  return head.find("last-modified").value_or("");
}

std::string bare_etag(std::string_view text) {
  if (text.starts_with("W/")) text.remove_prefix(2);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') text = text.substr(1, text.size() - 2);
  return std::string(text);
}

}  // namespace glu_ckpt
