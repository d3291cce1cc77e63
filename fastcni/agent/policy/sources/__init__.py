"""The sources of pods, namespaces and policies: documents, read into a Compiler.

    contract    the methods that the loop of policies calls
    files       a directory of JSON and YAML files
    kubernetes  the Kubernetes API
    content     puts the documents of a source into the Compiler
    documents   one document; records that close its pods if it is unreadable
    unreadable  the records that stand in for an unreadable document
    parse       the documents in a file, within limits
    reader      the processes that read files
    lease       whether a program writes a file
    kept        the last documents of a source, in a file
    events      Events of objects that cannot be read
"""
