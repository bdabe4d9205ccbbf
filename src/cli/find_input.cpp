#include "cli/find_input.hpp"

#include <cstdlib>
#include <filesystem>

#include "core/fail.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"

namespace glu_ckpt::cli {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Finds the cache as huggingface_hub does.
fs::path hub_cache() {
  if (const std::string cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "huggingface" / "hub";
  return fs::path(variable("HOME")) / ".cache" / "huggingface" / "hub";
}

/// "org/name", as the hub writes it.
bool is_repository_name(const std::string& text) {
  constexpr std::string_view kWords = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == text.size() || text[0] == '.') return false;
  return text.find('/', slash + 1) == std::string::npos &&
         text.find_first_not_of(std::string(kWords) + "/") == std::string::npos;
}

/// The snapshot that refs/main names; empty where there is none.
fs::path snapshot_in(const fs::path& repository) {
  constexpr i64 kMaxCommitBytes = 256;
  const fs::path main = repository / "refs" / "main";
  if (!is_file(main)) return {};
  std::string commit = read_small_file(main, kMaxCommitBytes, ErrorCode::NotSupported);
  commit.erase(commit.find_last_not_of(" \r\n") + 1);
  if (commit.empty() || commit.find('/') != std::string::npos || commit.starts_with('.')) return {};
  const fs::path snapshot = repository / "snapshots" / commit;
  return is_directory_at(snapshot) ? snapshot : fs::path();
}

}  // namespace

std::string find_input(const std::string& text) {
  if (text == "-")
    fail(ErrorCode::Usage, {text, {}}, "'-': a checkpoint is not read from standard input; name a file or directory");
  if (text.empty() || path_exists(text)) {
    if (text.empty() || !is_directory_at(fs::path(text) / "snapshots")) return text;
    const fs::path snapshot = snapshot_in(text);
    return snapshot.empty() ? text : snapshot.string();
  }
  if (text.find("://") != std::string::npos) {
    std::string copy = "copy it to this machine first";
    for (const std::string_view hub : {"hf://", "https://huggingface.co/"})
      if (text.starts_with(hub) && is_repository_name(text.substr(hub.size())))
        copy = "`hf download " + text.substr(hub.size()) + "` brings it to this machine";
    fail(ErrorCode::Usage, {text, {}}, "{}: remote paths are not read; {}", text, copy);
  }
  if (!is_repository_name(text) || name_taken(text)) return text;
  std::string folder = "models--" + text;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path repository = hub_cache() / folder;
  const fs::path snapshot = snapshot_in(repository);
  if (snapshot.empty())
    fail(ErrorCode::NotFound, {text, {}},
         "{}: does not exist here, and remote paths are not read. If it is a repository of the Hugging Face hub: there "
         "is "
         "none in {}; `hf download {}` brings it there",
         text, repository.string(), text);
  return snapshot.string();
}

}  // namespace glu_ckpt::cli
