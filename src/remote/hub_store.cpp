/// Repositories of models of the Hugging Face hub, and of what speaks as it does.

#include "core/fail.hpp"
#include "core/json.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "remote/fetcher.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kHub = "https://huggingface.co";
constexpr std::size_t kMaxDepth = 64;
constexpr i64 kMostTokenBytes = 4096;
constexpr std::size_t kCommitDigits = 40, kSha256Digits = 64;

bool is_hexadecimal(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

/// Finds the token as huggingface_hub does.
std::string find_token() {
  for (const char* const name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
    if (std::string token = environment(name); !token.empty()) return token;
  std::filesystem::path file = environment("HF_TOKEN_PATH");
  if (file.empty()) {
    std::filesystem::path home = environment("HF_HOME");
    if (home.empty()) {
      const std::string cache = environment("XDG_CACHE_HOME");
      home = (cache.empty() ? std::filesystem::path(environment("HOME")) / ".cache" : std::filesystem::path(cache)) /
             "huggingface";
    }
    file = home / "token";
  }
  if (!is_file(file)) return {};
  std::string token = read_small_file(file, kMostTokenBytes, ErrorCode::NotSupported);
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  token.erase(0, token.find_first_not_of(" \t\r\n"));
  return token;
}

class HubStore final : public RemoteStore {
 public:
  HubStore(const std::string& root, std::string repository, std::string revision)
      : RemoteStore(root), repository_(std::move(repository)), revision_(std::move(revision)), token_(find_token()) {
    std::string endpoint = environment("HF_ENDPOINT");
    while (endpoint.ends_with('/')) endpoint.pop_back();
    const auto url = parse_url(endpoint.empty() ? std::string(kHub) : endpoint);
    if (!url || !url->user.empty()) fail(ErrorCode::Usage, {}, "HF_ENDPOINT is no address such as {}", kHub);
    endpoint_ = *url;
    while (endpoint_.path.ends_with('/')) endpoint_.path.pop_back();
    // It becomes a line of a head.
    if (token_.find_first_of("\r\n") != std::string::npos) fail(ErrorCode::Usage, {}, "HF_TOKEN has several lines");
  }

  void list(const std::string& /*directory*/, RemoteTree& tree, Fetcher& fetcher) const override {
    Url url = endpoint_;
    url.path += fmt::format("/api/models/{}/revision/{}", percent_encode(repository_, "/"), percent_encode(revision_));
    url.query = "?blobs=true";
    const Fetcher::Document answer = fetcher.document(url, root());
    const JsonDocument document(answer.text, kMaxDepth);
    const auto fail_answer = [&](const std::string& why) {
      fail(ErrorCode::NotSupported, {root(), {}}, "{}: the answer of {} is none of the hub's: it {}", root(),
           url.authority(), why);
    };
    if (document.fault()) fail_answer(document.fault()->text());
    const auto commit = document.root().find<std::string_view>("sha");
    const auto siblings = document.root().find("siblings");
    if (!commit || !is_hexadecimal(*commit, kCommitDigits)) fail_answer("names no commit");
    if (!siblings || siblings->kind() != JsonKind::Array) fail_answer("lists no files");
    commit_ = *commit;
    std::string sums;
    for (const JsonValue file : siblings->items()) {
      const auto name = file.find<std::string_view>("rfilename");
      if (!name) fail_answer("lists a file without a name");
      RemoteNode& node = tree.add(std::string(*name));
      if (const auto bytes = file.find<i64>("size"); bytes && *bytes >= 0) node.bytes = *bytes;
      if (const auto blob = file.find<std::string_view>("blobId")) node.version = *blob;
      const auto lfs = file.find("lfs");
      const auto sha = lfs ? lfs->find<std::string_view>("sha256") : std::nullopt;
      if (!sha || !is_hexadecimal(*sha, kSha256Digits)) continue;
      node.sha256 = node.version = *sha;
      sums += fmt::format("{}  {}\n", *sha, *name);
      if (const auto bytes = lfs->find<i64>("size"); bytes && *bytes >= 0) node.bytes = *bytes;
    }
    add_manifest(tree, sums);
    tree.set_all_listed();
  }

  std::string pinned_root() const override { return fmt::format("hf://{}@{}", repository_, commit_); }

  Url url_of(const std::string& file) const override {
    Url url = endpoint_;
    url.path += fmt::format("/{}/resolve/{}/{}", percent_encode(repository_, "/"), commit_, percent_encode(file, "/"));
    return url;
  }

  HeaderLines credentials(const Url& url) const override {
    if (token_.empty() || url.origin() != endpoint_.origin()) return {};
    return {{"Authorization", "Bearer " + token_}};
  }

  std::string advice(const HttpHead& head) const override {
    const std::string code = head.find("x-error-code").value_or("");
    if (code == "RevisionNotFound")
      return fmt::format("the repository has no revision '{}'; hf://{}@REVISION names another", revision_, repository_);
    if (code == "EntryNotFound") return "the commit has no such file";
    if (code == "GatedRepo")
      return fmt::format("its owner lets in who asked for it: open {}/{} in a browser, accept, and set HF_TOKEN",
                         endpoint_.shown(), repository_);
    if (head.status == 401 || head.status == 403 || head.status == 404)
      return token_.empty() ? "check the name; a private or gated repository needs a token in HF_TOKEN, or `hf auth "
                              "login`"
                            : "check the name, and that the token in HF_TOKEN, or of `hf auth login`, may read it";
    return {};
  }

  /// The hub has no ETags of its own for what lies on another host; check_answer() compares what it says of the file.
  std::string version_in(const HttpHead& /*head*/) const override { return {}; }

  void check_answer(const std::string& file, const RemoteNode& node, const HttpHead& head) const override {
    const auto differs = [&](std::string_view line, const std::string& was) {
      const auto now = head.find(line);
      return now && !was.empty() && bare_etag(*now) != was ? bare_etag(*now) : std::string();
    };
    std::string now = differs("x-repo-commit", commit_);
    if (now.empty()) now = differs("x-linked-etag", node.sha256);
    if (now.empty() && node.bytes >= 0) now = differs("x-linked-size", std::to_string(node.bytes));
    if (now.empty()) return;
    const std::string name = name_of(file);
    fail(ErrorCode::SourceChanged, {name, {}},
         "{}: the hub answers about {}, and listed commit {} with another one; run again", name, now, commit_);
  }

 private:
  /// What the hub says of large files is a list as sha256sum makes it, so `check` compares it with what it reads.
  static void add_manifest(RemoteTree& tree, const std::string& sums) {
    constexpr const char* kName = "glu_ckpt.sha256";
    if (sums.empty() || tree.find(kName) != nullptr) return;
    RemoteNode& node = tree.add(kName);
    node.bytes = std::ssize(sums);
    node.made = std::make_shared<const std::string>(sums);
  }

  std::string repository_;
  std::string revision_;
  std::string token_;
  Url endpoint_;
  /// The commit that all files are read from, once listed.
  mutable std::string commit_;
};

}  // namespace

std::unique_ptr<RemoteStore> make_hub_store(const std::string& root, const std::string& repository,
                                            const std::string& revision) {
  return std::make_unique<HubStore>(root, repository, revision);
}

}  // namespace glu_ckpt
