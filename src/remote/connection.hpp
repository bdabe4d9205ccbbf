#pragma once
/// One connection to a server, with TLS and over a proxy where asked for.

#include <netdb.h>
#include <openssl/ssl.h>
#include <sys/types.h>

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "glu_ckpt/tensor.hpp"
#include "remote/url.hpp"

namespace glu_ckpt {

/// A failure that another try may mend.
class NetworkFailure : public std::runtime_error {
 public:
  explicit NetworkFailure(const std::string& what, i64 retry_after_ms = -1)
      : std::runtime_error(what), retry_after_ms_(retry_after_ms) {}
  /// The time that the server asked to be left alone; negative where it did not.
  i64 retry_after_ms() const { return retry_after_ms_; }

 private:
  i64 retry_after_ms_;
};

/// What the environment says about the network.
struct NetworkSettings {
  /// Reads http_proxy, https_proxy, all_proxy, no_proxy, SSL_CERT_FILE, CURL_CA_BUNDLE, REQUESTS_CA_BUNDLE,
  /// HF_HUB_DOWNLOAD_TIMEOUT and GLU_CKPT_RETRIES.
  static NetworkSettings from_environment();
  /// Returns the proxy for a server; nothing where none is set.
  std::optional<Url> proxy_for(const Url& url) const;

  std::string http_proxy, https_proxy, no_proxy;
  std::string ca_file;
  i64 timeout_ms = 30'000;
  int retries = 8;
};

/// A variable of the environment; empty where it is not set.
std::string environment(const char* name);

/// A socket whose calls wait for the other side in short turns. They fail with EAGAIN after `timeout_ms` in vain, and
/// with ECANCELED once is_stop_asked().
struct PatientSocket {
  int descriptor = -1;
  i64 timeout_ms = 0;

  /// Opens and connects it. Returns 0, or the error.
  int connect(const addrinfo& to);
  ssize_t send(const void* bytes, std::size_t count) const;
  ssize_t receive(void* out, std::size_t count) const;
  void close();
};

class Connection {
 public:
  /// Connects. Throws NetworkFailure; Error for what no other try mends.
  Connection(const Url& url, const NetworkSettings& settings);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  void send(std::string_view bytes);
  /// Returns how many bytes came, 0 at the end of the stream.
  std::size_t receive(std::span<std::byte> out);
  /// Returns true where requests name the whole address, since a proxy without TLS passes them on.
  bool through_proxy() const { return through_proxy_; }
  /// "user:password" of that proxy.
  const std::string& proxy_user() const { return proxy_user_; }

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  void connect_to(const std::string& host, int port);
  void ask_proxy(const Url& url, const std::string& user);
  void start_tls(const Url& url, const NetworkSettings& settings);
  [[noreturn]] void fail_io(std::string_view action) const;
  void close();

  /// For messages.
  std::string name_;
  /// OpenSSL has its address.
  PatientSocket socket_;
  bool through_proxy_ = false;
  std::string proxy_user_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
};

}  // namespace glu_ckpt
