# Bash completion of Trireme's programs: options, commands, deck keys and their values. The programs' own
# help is the source, asked once in a shell.
# shellcheck shell=bash

declare -gA _trireme_known

# _trireme_help PROGRAM [WORD...]: what PROGRAM WORD... --help prints.
_trireme_help() {
  local question="$*"
  if [ -z "${_trireme_known[$question]+known}" ]; then
    _trireme_known[$question]=$("$@" --help 2>/dev/null </dev/null)
  fi
  printf '%s\n' "${_trireme_known[$question]}"
}

# _trireme_deck_help [KEY]: what trireme-pretrain --help deck[.KEY] prints.
_trireme_deck_help() {
  local topic=deck${1:+.$1}
  if [ -z "${_trireme_known[$topic]+known}" ]; then
    _trireme_known[$topic]=$(trireme-pretrain --help "$topic" 2>/dev/null </dev/null)
  fi
  printf '%s\n' "${_trireme_known[$topic]}"
}

# _trireme_values KEY: the values that the deck allows for KEY.
_trireme_values() {
  local type
  type=$(_trireme_deck_help "$1" | sed -n 's/^  type  *//p')
  if [[ $type == "true or false" ]]; then
    echo "true false"
  else
    _trireme_deck_help "$1" | sed -n 's/^  allowed  *//p' | tr -d ,
  fi
}

_trireme() {
  local program=$1 word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} key="" command=()
  COMPREPLY=()
  # Bash divides "model.layers=12" into three words.
  if [ "$word" = "=" ]; then
    key=$before word=""
  elif [ "$before" = "=" ] && [ "$COMP_CWORD" -ge 2 ]; then
    key=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  if [[ $key == *.* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_trireme_values "$key")" -- "$word")
    [ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "$word")
    return
  fi
  if [[ ${COMP_WORDS[1]-} =~ ^[a-z]+$ ]] && [ "$COMP_CWORD" -gt 1 ]; then
    command=("${COMP_WORDS[1]}")
  fi

  if [[ $word == -* ]]; then
    local options
    options=$({
      _trireme_help "$program" "${command[@]}"
      _trireme_help "$program"
    } | grep -oE '(^|[[ ])--[a-z][a-z-]*' | tr -d ' [' | sort -u)
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    return
  fi

  local words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words=$(_trireme_help "$program" |
      sed -nE -e "s/^(Usage:)? *${program##*/} \[?([a-z]+)\]?( .*)?\$/\2/p" -e '/^Commands:/,/^$/s/^  ([a-z]+)  .*/\1/p')
  fi
  if [[ $word == *[a-z]* ]] && _trireme_help "$program" | grep -q 'KEY=VALUE'; then
    # A section first, then its keys, which need a value.
    words+=" $(_trireme_deck_help | sed -nE 's/^([a-z_]+\.[a-z_.0-9]+) .*/\1=/p')"
  fi
  mapfile -t COMPREPLY < <(
    compgen -W "$words" -- "$word"
    compgen -f -- "$word"
  )
  if [ ${#COMPREPLY[@]} -eq 1 ] && [[ ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
}

complete -o filenames -F _trireme trireme-bench trireme-convert trireme-evaluate trireme-generate \
  trireme-inspect trireme-plan trireme-preprocess trireme-pretrain trireme-report trireme-serve trireme-sweep \
  trireme-tokenizer
