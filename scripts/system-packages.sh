#!/bin/sh
# Install a system package where that is allowed; otherwise say what is lost and go on.
package=$1 purpose=$2
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    apt-get install -y -q "$package" >/dev/null 2>&1 || { apt-get update -q >/dev/null 2>&1 && apt-get install -y -q "$package" >/dev/null 2>&1; } && exit 0
fi
echo "could not install the system package '$package' ($purpose): without it, commands need --unsafe-no-sandbox."
echo "To install it by hand: sudo apt-get install $package (Debian), sudo dnf install $package (Fedora)."
exit 0
