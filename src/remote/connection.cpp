#include "remote/connection.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nss.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <system_error>

#include "core/base64.hpp"
#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "io/directory.hpp"
#include "remote/stoppable_wait.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kMostProxyAnswer = 16384;

// ---- TLS over a socket --------------------------------------------------------------------------

// OpenSSL's own functions wait for as long as they like, and write without MSG_NOSIGNAL, and a server that hangs up
// would end the program.

int bio_write(BIO* bio, const char* bytes, int count) {
  const auto& socket = *static_cast<const PatientSocket*>(BIO_get_data(bio));
  return static_cast<int>(socket.send(bytes, static_cast<std::size_t>(count)));
}

int bio_read(BIO* bio, char* out, int count) {
  const auto& socket = *static_cast<const PatientSocket*>(BIO_get_data(bio));
  return static_cast<int>(socket.receive(out, static_cast<std::size_t>(count)));
}

long bio_control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

/// The socket stays where it is as long as the connection.
BIO* make_bio(PatientSocket& socket) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  BIO* const bio = BIO_new(method);
  BIO_set_data(bio, &socket);
  BIO_set_init(bio, 1);
  return bio;
}

/// Places of the certificates that a system trusts: a program that needs no shared library runs on any of them.
constexpr auto kCaFiles =
    std::to_array<const char*>({"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"});

SSL_CTX* make_context(const std::string& ca_file) {
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  if (context == nullptr) fail(ErrorCode::NoMemory, {}, "TLS cannot be started");
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  if (!ca_file.empty()) {
    if (SSL_CTX_load_verify_locations(context, ca_file.c_str(), nullptr) != 1)
      fail(ErrorCode::NotFound, {ca_file, {}},
           "{}: has no certificates; SSL_CERT_FILE, CURL_CA_BUNDLE or REQUESTS_CA_BUNDLE names it", ca_file);
    return context;
  }
  SSL_CTX_set_default_verify_paths(context);
  for (const char* const file : kCaFiles)
    if (is_file(file) && SSL_CTX_load_verify_locations(context, file, nullptr) == 1) break;
  ERR_clear_error();
  return context;
}

SSL_CTX* context_for(const std::string& ca_file) {
  static std::mutex mutex;
  static SSL_CTX* context = nullptr;
  static std::string made_for;
  const std::lock_guard lock(mutex);
  if (context == nullptr || made_for != ca_file) {
    // A context that connections were made with stays: they may still use it.
    context = make_context(ca_file);
    made_for = ca_file;
  }
  return context;
}

/// A program that needs no shared library finds hosts by /etc/hosts and DNS, which are in it. What else nsswitch.conf
/// names would be loaded from shared libraries of another C library, which may end the program.
void look_up_alone() {
#ifdef GLU_CKPT_STATIC
  static const int set = ::__nss_configure_lookup("hosts", "files dns");
  (void)set;
#endif
}

/// The answer of getaddrinfo() for a host.
struct LookUp {
  LookUp() = default;
  LookUp(const LookUp&) = delete;
  LookUp& operator=(const LookUp&) = delete;
  ~LookUp() {
    if (found != nullptr) ::freeaddrinfo(found);
  }

  int error = 0;
  /// Where the error is EAI_SYSTEM.
  int system_error = 0;
  addrinfo* found = nullptr;
};

/// Servers of names may take half a minute to give up. Throws Interrupted before that where it is asked for.
std::shared_ptr<const LookUp> addresses_of(const std::string& host, int port) {
  look_up_alone();
  const auto look_up = std::make_shared<LookUp>();
  run_stoppably([look_up, host, port] {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    look_up->error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &look_up->found);
    look_up->system_error = errno;
  });
  return look_up;
}

/// Makes a call again that fails with EAGAIN after each turn in vain.
template <typename Call>
ssize_t patiently(i64 timeout_ms, const Call& call) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (;;) {
    const ssize_t done = call();
    const bool in_vain = done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (done >= 0 || (!in_vain && errno != EINTR)) return done;
    if (is_stop_asked()) {
      errno = ECANCELED;
      return -1;
    }
    if (in_vain && Clock::now() - begin >= std::chrono::milliseconds(timeout_ms)) return -1;
  }
}

std::string reason_of(int error) { return std::generic_category().message(error); }

bool matches_no_proxy(std::string_view list, const std::string& host) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string name = lower_case(trimmed(list.substr(0, comma)));
    list.remove_prefix(std::min(comma + 1, list.size()));
    if (name == "*") return true;
    if (name.starts_with('.')) name.erase(0, 1);
    if (!name.empty() && (host == name || host.ends_with("." + name))) return true;
  }
  return false;
}

std::string either(const char* one, const char* other) {
  std::string value = environment(one);
  return value.empty() ? environment(other) : value;
}

}  // namespace

int PatientSocket::connect(const addrinfo& to) {
  descriptor = ::socket(to.ai_family, to.ai_socktype | SOCK_CLOEXEC, to.ai_protocol);
  if (descriptor < 0) return errno;
  const i64 turn_ms = std::min(kGlanceMs, timeout_ms);
  timeval turn{};
  turn.tv_usec = turn_ms * 1000;
  const int on = 1;
  ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &turn, sizeof turn);
  ::setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &turn, sizeof turn);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(descriptor, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  // It goes on by itself.
  pollfd done{descriptor, POLLOUT, 0};
  const ssize_t polled = patiently(timeout_ms, [&]() -> ssize_t {
    const int count = ::poll(&done, 1, static_cast<int>(turn_ms));
    if (count == 0) errno = EAGAIN;
    return count == 0 ? -1 : count;
  });
  if (polled < 0) return errno == EAGAIN ? ETIMEDOUT : errno;
  int error = 0;
  socklen_t bytes = sizeof error;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

ssize_t PatientSocket::send(const void* bytes, std::size_t count) const {
  return patiently(timeout_ms, [&] { return ::send(descriptor, bytes, count, MSG_NOSIGNAL); });
}

ssize_t PatientSocket::receive(void* out, std::size_t count) const {
  return patiently(timeout_ms, [&] { return ::recv(descriptor, out, count, 0); });
}

void PatientSocket::close() {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

NetworkSettings NetworkSettings::from_environment() {
  constexpr i64 kMostSeconds = 3600;
  constexpr int kMostRetries = 100;
  NetworkSettings settings;
  const std::string all = either("all_proxy", "ALL_PROXY");
  // HTTP_PROXY is what a client of a CGI script may set.
  settings.http_proxy = environment("http_proxy");
  settings.https_proxy = either("https_proxy", "HTTPS_PROXY");
  if (settings.http_proxy.empty()) settings.http_proxy = all;
  if (settings.https_proxy.empty()) settings.https_proxy = all;
  settings.no_proxy = either("no_proxy", "NO_PROXY");
  for (const char* const name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"})
    if (settings.ca_file.empty()) settings.ca_file = environment(name);
  if (const auto seconds = parse_number<double>(environment("HF_HUB_DOWNLOAD_TIMEOUT")); seconds && *seconds > 0)
    settings.timeout_ms = static_cast<i64>(1000 * std::min(*seconds, static_cast<double>(kMostSeconds)));
  if (const auto retries = parse_number<int>(environment("GLU_CKPT_RETRIES")))
    settings.retries = std::clamp(*retries, 0, kMostRetries);
  return settings;
}

std::optional<Url> NetworkSettings::proxy_for(const Url& url) const {
  std::string proxy = url.is_tls ? https_proxy : http_proxy;
  if (proxy.empty() || matches_no_proxy(no_proxy, url.host)) return {};
  if (proxy.find("://") == proxy.npos) proxy.insert(0, "http://");
  auto parsed = parse_url(proxy);
  if (!parsed || parsed->is_tls)
    fail(ErrorCode::Usage, {}, "the proxy that {} names is no http:// address; only such proxies are used",
         url.is_tls ? "https_proxy" : "http_proxy");
  return parsed;
}

Connection::Connection(const Url& url, const NetworkSettings& settings)
    : name_(url.authority()), socket_{-1, settings.timeout_ms} {
  const auto proxy = settings.proxy_for(url);
  try {
    if (proxy) name_ = fmt::format("the proxy {}", proxy->authority());
    connect_to(proxy ? proxy->host : url.host, proxy ? proxy->port : url.port);
    if (proxy && url.is_tls) ask_proxy(url, proxy->user);
    if (proxy && !url.is_tls) {
      through_proxy_ = true;
      proxy_user_ = proxy->user;
    }
    name_ = url.authority();
    if (url.is_tls) start_tls(url, settings);
  } catch (...) {
    close();
    throw;
  }
}

Connection::~Connection() { close(); }

void Connection::close() {
  ssl_.reset();
  socket_.close();
}

void Connection::connect_to(const std::string& host, int port) {
  const std::shared_ptr<const LookUp> look_up = addresses_of(host, port);
  if (look_up->error != 0)
    throw NetworkFailure(
        fmt::format("the address of {} is not found ({})", name_,
                    look_up->error == EAI_SYSTEM ? reason_of(look_up->system_error) : ::gai_strerror(look_up->error)));
  int failed = 0;
  for (const addrinfo* at = look_up->found; at != nullptr; at = at->ai_next) {
    failed = socket_.connect(*at);
    if (failed == 0) return;
    socket_.close();
    check_stop();
  }
  throw NetworkFailure(fmt::format("{} cannot be connected to ({})", name_, reason_of(failed)));
}

void Connection::ask_proxy(const Url& url, const std::string& user) {
  const std::string host = url.host.find(':') == url.host.npos ? url.host : fmt::format("[{}]", url.host);
  std::string request = fmt::format("CONNECT {0}:{1} HTTP/1.1\r\nHost: {0}:{1}\r\n", host, url.port);
  if (!user.empty()) request += fmt::format("Proxy-Authorization: Basic {}\r\n", base64_encode(user));
  send(request + "\r\n");
  std::string answer;
  // Byte by byte: what follows the head is TLS.
  while (!answer.ends_with("\r\n\r\n")) {
    std::byte one{};
    if (answer.size() > kMostProxyAnswer || receive({&one, 1}) == 0)
      throw NetworkFailure(fmt::format("{} hung up", name_));
    answer += static_cast<char>(one);
  }
  const std::string status = answer.substr(0, answer.find('\r'));
  if (status.starts_with("HTTP/1.") && status.find(" 2") == std::string_view("HTTP/1.1").size()) return;
  const std::string told = status.size() > 12 ? status.substr(9, 3) : std::string("no HTTP");
  if (told == "407")
    fail(ErrorCode::AccessDenied, {}, "{}: asks for a password (407); https_proxy takes http://USER:PASSWORD@HOST:PORT",
         name_);
  throw NetworkFailure(fmt::format("{} does not connect to {}: it answered {}", name_, url.authority(), told));
}

void Connection::start_tls(const Url& url, const NetworkSettings& settings) {
  ERR_clear_error();
  ssl_.reset(SSL_new(context_for(settings.ca_file)));
  if (!ssl_) fail(ErrorCode::NoMemory, {}, "TLS cannot be started");
  X509_VERIFY_PARAM* const checks = SSL_get0_param(ssl_.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(checks, url.host.c_str()) != 1) {
    ERR_clear_error();
    X509_VERIFY_PARAM_set1_host(checks, url.host.c_str(), url.host.size());
    SSL_set_tlsext_host_name(ssl_.get(), url.host.c_str());
  }
  BIO* const bio = make_bio(socket_);
  SSL_set_bio(ssl_.get(), bio, bio);
  if (SSL_connect(ssl_.get()) == 1) return;
  const long verdict = SSL_get_verify_result(ssl_.get());
  if (verdict != X509_V_OK)
    fail(ErrorCode::AccessDenied, {},
         "{}: its certificate is not trusted ({}); SSL_CERT_FILE names a file of certificates that are", name_,
         X509_verify_cert_error_string(verdict));
  fail_io("begin TLS with");
}

void Connection::fail_io(std::string_view action) const {
  if (errno == ECANCELED) check_stop();
  if (errno == EAGAIN || errno == EWOULDBLOCK)
    throw NetworkFailure(fmt::format("{} was silent for {} s", name_, static_cast<double>(socket_.timeout_ms) / 1000));
  if (errno == 0) throw NetworkFailure(fmt::format("{} hung up", name_));
  throw NetworkFailure(fmt::format("cannot {} {} ({})", action, name_, reason_of(errno)));
}

void Connection::send(std::string_view bytes) {
  while (!bytes.empty()) {
    errno = 0;
    if (ssl_) ERR_clear_error();
    const ssize_t sent = ssl_ ? SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()))
                              : socket_.send(bytes.data(), bytes.size());
    if (sent <= 0) fail_io("write to");
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

std::size_t Connection::receive(std::span<std::byte> out) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;
  const std::size_t count = std::min(out.size(), kMostAtOnce);
  errno = 0;
  if (!ssl_) {
    const ssize_t got = socket_.receive(out.data(), count);
    if (got >= 0) return static_cast<std::size_t>(got);
    fail_io("read from");
  }
  ERR_clear_error();
  const int got = SSL_read(ssl_.get(), out.data(), static_cast<int>(count));
  if (got > 0) return static_cast<std::size_t>(got);
  // An end without TLS's own is an end that anybody may have made; the length of the answer says whether it is one.
  if (SSL_get_error(ssl_.get(), got) == SSL_ERROR_ZERO_RETURN) return 0;
  fail_io("read from");
}

}  // namespace glu_ckpt
