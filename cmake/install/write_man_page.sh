#!/usr/bin/env bash
# Prints the manual page of a program, made from its --help, or that of the deck's keys.
#
#   cmake/install/write_man_page.sh VERSION PROGRAM DESCRIPTION     section 1
#   cmake/install/write_man_page.sh VERSION --deck PRETRAIN         section 5, of trireme-pretrain's --help deck
set -euo pipefail

# escape: text as it is, for troff; headings are the lines that end with a colon.
escape() {
  sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/" | awk '
    NR == 1 && /^Usage:/ { print ".SH SYNOPSIS\n.nf"; sub(/^Usage: */, ""); print; usage = 1; next }
    usage && /^ / { sub(/^       /, ""); print; next }
    usage { usage = 0; print ".fi\n.SH DESCRIPTION\n.nf"; if (/^$/) next }
    /^[A-Za-z].*:$/ && !/,/ { sub(/:$/, ""); print ".fi\n.SH " toupper($0) "\n.nf"; next }
    { print }
    END { print ".fi" }'
}

version=$1
if [ "$2" = --deck ]; then
  echo ".TH TRIREME-DECK 5 \"\" \"Trireme $version\""
  printf '.SH NAME\ntrireme\\-deck \\- keys of the YAML file that describes a run\n'
  printf '.SH DESCRIPTION\nEach key with its default in parentheses. "trireme\\-pretrain \\-\\-help deck.KEY" tells more of one.\n'
  printf '.SH KEYS\n.nf\n'
  "$3" --help deck | escape
  printf '.SH SEE ALSO\ntrireme\\-pretrain(1)\n'
  exit
fi

program=$2 name=${2##*/}
echo ".TH ${name^^} 1 \"\" \"Trireme $version\""
printf '.SH NAME\n%s \\- %s\n' "${name//-/\\-}" "$3"
help=$("$program" --help)
escape <<<"$help"
# Programs with commands have one page of options for each command.
if grep -q "'$name COMMAND --help'" <<<"$help"; then
  sed -nE '/^Commands:/,/^$/s/^  ([a-z]+)  .*/\1/p' <<<"$help" | while read -r command; do
    printf '.SH "COMMAND %s"\n.nf\n' "${command^^}"
    "$program" "$command" --help | sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/"
    echo .fi
  done
fi
printf '.SH SEE ALSO\ntrireme\\-deck(5), the pages in share/doc/trireme\n'
